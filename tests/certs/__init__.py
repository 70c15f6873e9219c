"""Certificates: issue, renew, rotate and serve."""
