package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func loaded(t *testing.T, dir string) *ControlPlane {
	t.Helper()
	c, err := load(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leaf(t *testing.T, certificate []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certificate)
	if block == nil {
		t.Fatal("the certificate is not in PEM")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestStateIsMadeOnceAndReadAfterwards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open before Start: want %v, got %v", fs.ErrNotExist, err)
	}
	before := loaded(t, dir)
	content, err := os.ReadFile(before.AdminKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	after, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if string(before.CA()) != string(after.CA()) {
		t.Error("the authority changed when the state was read again")
	}
	again, err := os.ReadFile(after.AdminKubeconfig())
	if err != nil || string(again) != string(content) {
		t.Errorf("the administrator's kubeconfig changed when the state was read again (%v)", err)
	}
}

func TestAPairThatWasHalfWrittenIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	loaded(t, dir)
	certificate, _ := pairFiles(filepath.Join(dir, pkiFolder), adminPair)
	if err := os.Remove(certificate); err != nil {
		t.Fatal(err)
	}
	c := loaded(t, dir)
	if _, err := tls.X509KeyPair(c.identities.pairs[adminPair].certificate, c.identities.pairs[adminPair].key); err != nil {
		t.Errorf("the certificate and the key do not belong together: %v", err)
	}
}

func TestServingCertificateIsGoodForEveryNameOfTheServer(t *testing.T) {
	c := loaded(t, t.TempDir())
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA())
	certificate := leaf(t, c.identities.pairs[serverPair].certificate)
	for _, host := range []string{"10.80.0.1", "10.96.0.1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} {
		if _, err := certificate.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestANodesKubeconfigSaysThatItIsThisNode(t *testing.T) {
	c := loaded(t, t.TempDir())
	content, err := c.NodeKubeconfig("node-1")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	if want := "https://10.80.0.1:6443"; config.Host != want {
		t.Errorf("server: want %s, got %s", want, config.Host)
	}
	certificate := leaf(t, config.CertData)
	if want := "system:node:node-1"; certificate.Subject.CommonName != want {
		t.Errorf("user: want %s, got %s", want, certificate.Subject.CommonName)
	}
	if groups := certificate.Subject.Organization; len(groups) != 1 || groups[0] != "system:nodes" {
		t.Errorf("groups: want [system:nodes], got %v", groups)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA())
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err != nil {
		t.Errorf("the certificate is not one for clients: %v", err)
	}
}

func TestOnlyTheOwnerCanReadKeys(t *testing.T) {
	dir := t.TempDir()
	loaded(t, dir)
	keys, err := filepath.Glob(filepath.Join(dir, pkiFolder, "*.key"))
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	for _, key := range keys {
		info, err := os.Stat(key)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("mode of %s: want 0600, got %o", filepath.Base(key), mode)
		}
	}
}
