#!/bin/sh
# An authority of your own, and a certificate that it has signed for each role. Needs OpenSSL 1.1.1 or newer.
set -eu
new_key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"

# Strict readers want to be told what the key of an authority is for.
openssl req -x509 $new_key -days 3650 -subj "/CN=authority of our cluster" \
    -addext keyUsage=critical,keyCertSign -keyout ca-key.pem -out ca.pem
for role in scheduler worker client; do
    openssl req $new_key -subj "/CN=$role" -keyout "$role-key.pem" -out "$role.csr"
    openssl x509 -req -in "$role.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 365 -out "$role.pem"
done
