package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// validity is how long certificates are good for: longer than any test cluster is kept.
	validity = 5 * 365 * 24 * time.Hour
	// clockTolerance is how far a node's clock may be behind this machine's.
	clockTolerance = time.Hour
)

// pair is a certificate and its private key, in PEM.
type pair struct{ certificate, key []byte }

// authority issues certificates.
type authority struct {
	pair
	parsed *x509.Certificate
	signer *ecdsa.PrivateKey
}

// identity is what a certificate says.
type identity struct {
	// name becomes the common name, which is the user's name to the API server.
	name string
	// groups become the organizations, which are the user's groups to the API server.
	groups []string
	// hosts are the names and addresses that a server answers to; a certificate with
	// hosts is for servers, any other for clients.
	hosts []string
}

func newAuthority(name string) (authority, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make the key of %s: %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return authority{}, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return authority{}, fmt.Errorf("make the certificate of %s: %w", name, err)
	}
	key, err := encodeKey(signer)
	if err != nil {
		return authority{}, err
	}
	return parseAuthority(pair{certificate: encode("CERTIFICATE", der), key: key})
}

func parseAuthority(p pair) (authority, error) {
	certificate, _ := pem.Decode(p.certificate)
	key, _ := pem.Decode(p.key)
	if certificate == nil || key == nil {
		return authority{}, errors.New("read the certificate authority: it is not in PEM")
	}
	parsed, err := x509.ParseCertificate(certificate.Bytes)
	if err != nil {
		return authority{}, fmt.Errorf("read the certificate authority: %w", err)
	}
	signer, err := x509.ParseECPrivateKey(key.Bytes)
	if err != nil {
		return authority{}, fmt.Errorf("read the certificate authority's key: %w", err)
	}
	return authority{pair: p, parsed: parsed, signer: signer}, nil
}

// issue makes a key and a certificate with the identity.
func (a authority) issue(who identity) (pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make the key of %s: %w", who.name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: who.name, Organization: who.groups})
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(who.hosts) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, host := range who.hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.parsed, signer.Public(), a.signer)
	if err != nil {
		return pair{}, fmt.Errorf("make the certificate of %s: %w", who.name, err)
	}
	key, err := encodeKey(signer)
	if err != nil {
		return pair{}, err
	}
	return pair{certificate: encode("CERTIFICATE", der), key: key}, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-clockTolerance),
		NotAfter:     now.Add(validity),
	}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// newSigningKey makes the key pair that service-account tokens are signed and verified
// with. In the result, certificate is the public key.
func newSigningKey() (pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make the key of service-account tokens: %w", err)
	}
	private, err := encodeKey(signer)
	if err != nil {
		return pair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return pair{}, fmt.Errorf("encode the public key of service-account tokens: %w", err)
	}
	return pair{certificate: encode("PUBLIC KEY", public), key: private}, nil
}

// pairFiles are the files of the pair called name in the folder dir.
func pairFiles(dir, name string) (certificate, key string) {
	return filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
}

// loadOrMake returns the pair called name in the folder dir, made and written there by
// create if it is not there yet. The certificate is written last: a pair without one was
// interrupted and is made again.
func loadOrMake(dir, name string, create func() (pair, error)) (pair, error) {
	certificateFile, keyFile := pairFiles(dir, name)
	var p pair
	var err error
	p.certificate, err = os.ReadFile(certificateFile)
	if err == nil {
		p.key, err = os.ReadFile(keyFile)
	}
	if err == nil {
		return p, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return pair{}, fmt.Errorf("read the keys of %s: %w", name, err)
	}
	if p, err = create(); err != nil {
		return pair{}, err
	}
	if err := writeFile(keyFile, p.key); err != nil {
		return pair{}, err
	}
	return p, writeFile(certificateFile, p.certificate)
}

// writeFile makes the file at path hold content, readable by its owner alone; after a
// crash it holds what it held before, or content.
func writeFile(path string, content []byte) error {
	partial := path + ".partial"
	if err := os.WriteFile(partial, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
