#!/bin/sh
# Make a CA that signs only the API servers' client certificate, and the certificate: docs/guides/certificates.md
# In the same folder, the next run renews the certificate and keeps the CA.
set -e
[ -e client-ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj '/CN=webhook clients' \
  -addext basicConstraints=critical,CA:true -keyout client-ca.key -out client-ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kube-apiserver -keyout webhook-client.key -out webhook-client.csr
printf 'basicConstraints=critical,CA:false\nextendedKeyUsage=clientAuth\n' > webhook-client.ext
openssl x509 -req -days 365 -in webhook-client.csr -CA client-ca.crt -CAkey client-ca.key -CAcreateserial \
  -extfile webhook-client.ext -out webhook-client.crt
