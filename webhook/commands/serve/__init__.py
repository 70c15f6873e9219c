"""`kubevirt-scheduler serve`: run the webhook."""
