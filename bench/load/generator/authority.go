package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

// Certificates of the job's authority, as holdfast_wire.authority makes them: one for each agent.

const (
	caInfo      = "holdfast job ca v1"
	keyMaterial = 48
	serialBits  = 128
	backdate    = 5 * time.Minute
	lifetime    = 24 * time.Hour
)

type authority struct {
	jobUID string
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	pool   *x509.CertPool
}

func newAuthority(rootKey, jobUID, caPEM string) (*authority, error) {
	root, err := hex.DecodeString(rootKey)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	block, _ := pem.Decode([]byte(caPEM))
	if block == nil {
		return nil, errors.New("ca: no PEM")
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	key, err := deriveKey(root, jobUID)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(ca.PublicKey) {
		return nil, errors.New("ca: its key is not the one that the root key and the job give")
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &authority{jobUID: jobUID, ca: ca, key: key, pool: pool}, nil
}

func deriveKey(root []byte, jobUID string) (*ecdsa.PrivateKey, error) {
	material, err := hkdf.Key(sha256.New, root, []byte(caInfo), jobUID, keyMaterial)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	curve := elliptic.P256()
	one := big.NewInt(1)
	scalar := new(big.Int).SetBytes(material)
	scalar.Mod(scalar, new(big.Int).Sub(curve.Params().N, one)).Add(scalar, one)
	return ecdsa.ParseRawPrivateKey(curve, scalar.FillBytes(make([]byte, 32)))
}

// issue makes a key pair for a role; tail: what follows the role in the name.
func (a *authority) issue(role, tail string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return tls.Certificate{}, err
	}
	name, err := url.Parse("holdfast://" + url.PathEscape(a.jobUID) + "/" + role + tail)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	made, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: role + tail},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		URIs:                  []*url.URL{name},
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.ca, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of %s%s: %w", role, tail, err)
	}
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}, nil
}
