"""`kubevirt-scheduler certs`: show the certificates, renew them, and rotate the CA."""
