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

	"github.com/carve-csi/carve/pkg/must"
)

const testNamespace = "carve-system"

func newTestStore(client *fake.Clientset) *Store {
	return NewStore(client, testNamespace, "carve-uplink.carve-system.svc", slog.New(slog.DiscardHandler))
}

func published(t *testing.T, client *fake.Clientset) []byte {
	t.Helper()
	m := must.Get(client.CoreV1().ConfigMaps(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{}))(t)
	return []byte(m.Data[CABundleKey])
}

func checkServing(t *testing.T, client *fake.Clientset, s *Store) {
	t.Helper()
	cert := must.Get(s.GetCertificate(nil))(t)
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
		must.Succeed(t, s.Refresh(t.Context()))
	}
	checkServing(t, client, victim)
	cert := must.Get(thief.GetCertificate(nil))(t)
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
		must.Succeed(t, s.Refresh(t.Context()))
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
		t.Error("the certificate was not renewed at half of its validity")
	}
	now = now.Add(CALife - RotateBefore)
	for range 3 { // next is published, then signs, then previous is dropped
		refresh()
		checkServing(t, client, s)
		now = now.Add(PublishOverlap)
	}
}

func TestAnEditedBundleIsPutRight(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	must.Succeed(t, s.Refresh(t.Context()))
	m := must.Get(client.CoreV1().ConfigMaps(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{}))(t)
	m.Data[CABundleKey] = "nonsense"
	must.Get(client.CoreV1().ConfigMaps(testNamespace).Update(t.Context(), m, metav1.UpdateOptions{}))(t)
	must.Succeed(t, s.Refresh(t.Context()))
	checkServing(t, client, s)
}

func TestABrokenSecretIsAnErrorThatNamesIt(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	must.Succeed(t, s.Refresh(t.Context()))
	secret := must.Get(client.CoreV1().Secrets(testNamespace).Get(t.Context(), CAName, metav1.GetOptions{}))(t)
	secret.Data[keySignerCert] = []byte("nonsense")
	must.Get(client.CoreV1().Secrets(testNamespace).Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
	if err := s.Refresh(t.Context()); err == nil {
		t.Error("a broken Secret went unnoticed")
	}
}

func TestTheMetricsTokenIsMadeOnceAndKept(t *testing.T) {
	client := fake.NewClientset()
	s := newTestStore(client)
	var first string
	for range 2 {
		must.Succeed(t, s.Refresh(t.Context()))
		secret := must.Get(client.CoreV1().Secrets(testNamespace).Get(t.Context(), MetricsSecretName, metav1.GetOptions{}))(t)
		token := string(secret.Data[MetricsTokenKey])
		if len(token) < 40 || first != "" && token != first {
			t.Errorf("token %q after %q", token, first)
		}
		first = token
	}
}
