#!/bin/sh
# Makes the certificates and keys in this folder, see README.md. Needs openssl.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/index"
cat > "$work/ca.conf" <<CONF
[ca]
default_ca = authority
[authority]
database = $work/index
new_certs_dir = $work
serial = $work/serial
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
CONF
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1.key"; }
request() { openssl req -new -key "$1.key" -subj "/CN=$2" -out "$work/$1.csr"; }

sign() {
    name=$1
    shift
    openssl ca -batch -notext -rand_serial -startdate 20200101000000Z -enddate 20691231235959Z -keyfile ca.key \
        -config "$work/ca.conf" -in "$work/$name.csr" -out "$name.crt" "$@"
}

key ca
request ca "rocketcore test authority"
sign ca -selfsign -extensions root
for name in server other-server client; do
    key "$name"
    request "$name" "$name"
    sign "$name" -cert ca.crt -extensions leaf
done
openssl pkcs8 -topk8 -v2 aes-256-cbc -passout pass:secret -in server.key -out server-encrypted.key
