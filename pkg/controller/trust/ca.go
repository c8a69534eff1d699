package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

const (
	// CALife is how long a CA certificate is valid.
	CALife = 365 * 24 * time.Hour
	// RotateBefore is the remaining validity of a signer at which the next CA is created.
	RotateBefore = 90 * 24 * time.Hour
	// PublishOverlap is how long a CA is published before it signs, and after it was replaced: the
	// kubelet refreshes a mounted ConfigMap within two minutes, and a replica renews its
	// certificate within one.
	PublishOverlap = 24 * time.Hour
	// ServingLife is how long a serving certificate is valid. It is renewed after half of that.
	ServingLife = 14 * 24 * time.Hour

	// backdate makes new certificates acceptable to peers whose clocks are slow.
	backdate = time.Hour
)

// Keys of the Secret's data. The first two are those of a kubernetes.io/tls Secret.
const (
	keySignerCert   = "tls.crt"
	keySignerKey    = "tls.key"
	keyNextCert     = "next.crt"
	keyNextKey      = "next.key"
	keyPreviousCert = "previous.crt"
	// keySince is when the signer replaced the previous CA, in RFC 3339.
	keySince = "signer-since"
)

// authority is one CA. key is nil for the previous one.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// published returns when the CA was created and added to the bundle.
func (a *authority) published() time.Time { return a.cert.NotBefore.Add(backdate) }

// authorities is the content of the Secret.
type authorities struct {
	signer         *authority
	next, previous *authority // may be nil
	since          time.Time  // when the signer replaced the previous one; zero if it replaced none
}

// parseAuthorities parses the Secret's data. The next and the previous CA are optional, but
// unreadable ones are errors: the Secret was edited.
func parseAuthorities(data map[string][]byte) (*authorities, error) {
	var out authorities
	var err error
	if out.signer, err = parseAuthority(data[keySignerCert], data[keySignerKey]); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", keySignerCert, keySignerKey, err)
	}
	if len(data[keyNextCert]) > 0 {
		if out.next, err = parseAuthority(data[keyNextCert], data[keyNextKey]); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", keyNextCert, keyNextKey, err)
		}
	}
	if len(data[keyPreviousCert]) > 0 {
		cert, err := parseCertificate(data[keyPreviousCert])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyPreviousCert, err)
		}
		out.previous = &authority{cert: cert}
	}
	if since := data[keySince]; len(since) > 0 {
		if out.since, err = time.Parse(time.RFC3339, string(since)); err != nil {
			return nil, fmt.Errorf("%s: %w", keySince, err)
		}
	}
	return &out, nil
}

func parseAuthority(cert, key []byte) (*authority, error) {
	c, err := parseCertificate(cert)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key) // fails for the key of another certificate
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("key cannot sign")
	}
	return &authority{cert: c, key: signer}, nil
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("certificate is no CA")
	}
	return cert, nil
}

func (a *authorities) data() (map[string][]byte, error) {
	out := map[string][]byte{}
	put := func(a *authority, certName, keyName string) error {
		if a == nil {
			return nil
		}
		out[certName] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
		if a.key == nil || keyName == "" {
			return nil
		}
		der, err := x509.MarshalPKCS8PrivateKey(a.key)
		if err != nil {
			return fmt.Errorf("encode CA key: %w", err)
		}
		out[keyName] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		return nil
	}
	if !a.since.IsZero() {
		out[keySince] = []byte(a.since.UTC().Format(time.RFC3339))
	}
	return out, errors.Join(put(a.signer, keySignerCert, keySignerKey), put(a.next, keyNextCert, keyNextKey), put(a.previous, keyPreviousCert, ""))
}

func (a *authorities) bundle() []byte {
	var out bytes.Buffer
	for _, one := range []*authority{a.signer, a.next, a.previous} {
		if one != nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: one.cert.Raw}) // to memory
		}
	}
	return out.Bytes()
}

// rotate returns the authorities to use at now, and false if they are unchanged. It takes one step
// at a time:
//
//	signer near its end, no next  → create next, and publish it
//	next published long enough    → next signs, the signer becomes previous
//	previous replaced long enough → drop previous
//	signer past its end           → use next or start anew: no peer trusts the signer
func (a *authorities) rotate(now time.Time) (*authorities, bool, error) {
	if !now.Before(a.signer.cert.NotAfter) {
		if a.next != nil && now.Before(a.next.cert.NotAfter) {
			return &authorities{signer: a.next}, true, nil
		}
		fresh, err := newAuthority(now)
		return &authorities{signer: fresh}, true, err
	}
	if a.next != nil && now.Sub(a.next.published()) >= PublishOverlap {
		return &authorities{signer: a.next, previous: a.signer, since: now}, true, nil
	}
	if a.previous != nil && now.Sub(a.since) >= PublishOverlap {
		return &authorities{signer: a.signer, next: a.next}, true, nil
	}
	if a.next == nil && a.signer.cert.NotAfter.Sub(now) < RotateBefore {
		next, err := newAuthority(now)
		return &authorities{signer: a.signer, next: next, previous: a.previous, since: a.since}, true, err
	}
	return a, false, nil
}

func newAuthority(now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		// The random name lets verifiers distinguish two generations.
		Subject:   pkix.Name{CommonName: "carve-uplink-ca-" + rand.Text()},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(CALife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

func (a *authority) serving(now time.Time, host string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make serving key: %w", err)
	}
	end := now.Add(ServingLife)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "carve-controller"}, DNSNames: []string{host},
		NotBefore: now.Add(-backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
