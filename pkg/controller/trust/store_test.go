package trust

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

const testNamespace = "carve-system"

func newTestStore(client *fake.Clientset) *Store {
	return NewStore(client, testNamespace, "carve-uplink.carve-system.svc", slog.New(slog.DiscardHandler))
}

func published(t *testing.T, client *fake.Clientset) []byte {
	t.Helper()
	m, err := client.CoreV1().ConfigMaps(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(m.Data[CABundleKey])
}

func checkServing(t *testing.T, client *fake.Clientset, s *Store) {
	t.Helper()
	cert, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(published(t, client))
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: s.host, CurrentTime: s.now()}); err != nil {
		t.Errorf("the published CA does not verify what is served: %v", err)
	}
}

func TestReplicasThatStartAtOnceAgreeOnOneCA(t *testing.T) {
	client := fake.NewClientset()
	stores := make([]*Store, 4)
	var wg sync.WaitGroup
	for i := range stores {
		stores[i] = newTestStore(client)
		wg.Go(func() {
			if err := stores[i].Refresh(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		checkServing(t, client, s)
	}
}

func TestTheCAOfOneInstallationIsOfNoUseInAnother(t *testing.T) {
	captured, client := fake.NewClientset(), fake.NewClientset()
	thief, victim := newTestStore(captured), newTestStore(client)
	for _, s := range []*Store{thief, victim} {
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	checkServing(t, client, victim)
	cert, err := thief.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(published(t, client))
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: victim.host, CurrentTime: victim.now()}); err == nil {
		t.Error("nodes of one installation trust the controller of another, which has the same name")
	}
}

func TestServingCertificateIsRenewedAndFollowsTheSigner(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	now := time.Now()
	s.now = func() time.Time { return now }
	refresh := func() {
		t.Helper()
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	first, _ := s.GetCertificate(nil)
	refresh()
	if again, _ := s.GetCertificate(nil); again != first {
		t.Error("the certificate was replaced without need")
	}
	now = now.Add(ServingLife/2 + time.Hour)
	refresh()
	if renewed, _ := s.GetCertificate(nil); renewed == first {
		t.Error("the certificate was not renewed at half of its life")
	}
	now = now.Add(CALife - RotateBefore)
	for range 3 { // next is published, signs, and the previous one goes
		refresh()
		checkServing(t, client, s)
		now = now.Add(PublishOverlap)
	}
}

func TestAnEditedBundleIsPutRight(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := client.CoreV1().ConfigMaps(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data[CABundleKey] = "nonsense"
	if _, err := client.CoreV1().ConfigMaps(testNamespace).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkServing(t, client, s)
}

func TestABrokenSecretIsAnErrorThatNamesIt(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	secret, err := client.CoreV1().Secrets(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data[keySignerCert] = []byte("nonsense")
	if _, err := client.CoreV1().Secrets(testNamespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(t.Context()); err == nil {
		t.Error("a broken Secret went unnoticed")
	}
}

func TestTheMetricsTokenIsMadeOnceAndKept(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	var first string
	for range 2 {
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		secret, err := client.CoreV1().Secrets(testNamespace).Get(t.Context(), MetricsSecretName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		token := string(secret.Data[MetricsTokenKey])
		if len(token) < 40 || first != "" && token != first {
			t.Errorf("token %q after %q", token, first)
		}
		first = token
	}
}
