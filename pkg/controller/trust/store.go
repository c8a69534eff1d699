package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// CAName is the name of the Secret that keeps the CA and of the ConfigMap that publishes it.
	CAName = "carve-uplink-ca"
	// CABundleKey is the ConfigMap's key.
	CABundleKey = "ca.crt"
	// MetricsSecretName is the Secret whose MetricsTokenKey protects /metrics.
	MetricsSecretName = "carve-metrics-token"
	// MetricsTokenKey is its key.
	MetricsTokenKey = "token"

	// refreshInterval is how often the Secret is read: a replica follows a rotation by another one
	// within it.
	refreshInterval = time.Minute
	// callTimeout limits one pass over the API.
	callTimeout = 15 * time.Second
	// writeAttempts limits how often a pass restarts because another replica wrote first.
	writeAttempts = 5
)

// Store keeps the CA and the serving certificate current. Its methods may be called concurrently.
type Store struct {
	client    kubernetes.Interface
	namespace string
	host      string
	log       *slog.Logger
	now       func() time.Time

	mu      sync.Mutex
	serving *tls.Certificate
	signer  []byte // raw certificate of the CA that signed serving
}

// NewStore returns a Store for an installation's namespace. The serving certificate will be for
// host.
func NewStore(client kubernetes.Interface, namespace, host string, log *slog.Logger) *Store {
	return &Store{client: client, namespace: namespace, host: host, log: log.With("component", "trust"), now: time.Now}
}

// Run keeps everything current until ctx is done. It closes ready once certificates can be served.
func (s *Store) Run(ctx context.Context, ready chan<- struct{}) {
	once := sync.OnceFunc(func() { close(ready) })
	pause := time.Second
	for ctx.Err() == nil {
		next := refreshInterval
		if err := s.Refresh(ctx); err == nil {
			once()
			pause = time.Second
		} else if ctx.Err() == nil {
			s.log.Warn("uplink certificates could not be brought up to date, trying on", "error", err)
			next, pause = pause, min(2*pause, refreshInterval)
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
		}
	}
}

// Refresh updates the CA, the published bundle, the serving certificate and the metrics token once.
func (s *Store) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	authorities, err := s.loadOrMake(ctx)
	if err != nil {
		return err
	}
	// Publish before serving, so that nodes can verify the new certificate.
	if err := s.publish(ctx, authorities.bundle()); err != nil {
		return err
	}
	if err := s.renewServing(authorities.signer); err != nil {
		return err
	}
	return s.ensureMetricsToken(ctx)
}

// GetCertificate returns the serving certificate, for tls.Config.
func (s *Store) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		return nil, errors.New("the uplink's certificate is not ready yet")
	}
	return s.serving, nil
}

// loadOrMake returns the stored authorities, after creating or rotating them if due. The first
// replica to write wins; the others read again.
func (s *Store) loadOrMake(ctx context.Context) (*authorities, error) {
	secrets := s.client.CoreV1().Secrets(s.namespace)
	for range writeAttempts {
		secret, err := secrets.Get(ctx, CAName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			signer, err := newAuthority(s.now())
			if err != nil {
				return nil, err
			}
			fresh := &authorities{signer: signer}
			data, err := fresh.data()
			if err != nil {
				return nil, err
			}
			_, err = secrets.Create(ctx, &v1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: CAName, Namespace: s.namespace},
				Type:       v1.SecretTypeTLS, Data: data,
			}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("create the uplink's CA: %w", err)
			}
			s.log.Info("made the uplink's CA", "not_after", signer.cert.NotAfter)
			return fresh, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the uplink's CA: %w", err)
		}
		current, err := parseAuthorities(secret.Data)
		if err != nil {
			return nil, fmt.Errorf("secret %s/%s (delete it to have a new CA made): %w", s.namespace, CAName, err)
		}
		rotated, due, err := current.rotate(s.now())
		if err != nil {
			return nil, err
		}
		if !due {
			return current, nil
		}
		update := secret.DeepCopy()
		if update.Data, err = rotated.data(); err != nil {
			return nil, err
		}
		_, err = secrets.Update(ctx, update, metav1.UpdateOptions{}) // fails if another replica wrote since
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("rotate the uplink's CA: %w", err)
		}
		s.log.Info("took a step in rotating the uplink's CA", "signer", rotated.signer.cert.Subject.CommonName,
			"next", rotated.next != nil, "previous", rotated.previous != nil)
	}
	return nil, errors.New("the uplink's CA kept changing while it was read")
}

func (s *Store) publish(ctx context.Context, bundle []byte) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	for range writeAttempts {
		current, err := maps.Get(ctx, CAName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = maps.Create(ctx, &v1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: CAName, Namespace: s.namespace},
				Data:       map[string]string{CABundleKey: string(bundle)},
			}, metav1.CreateOptions{})
		case err == nil && bytes.Equal([]byte(current.Data[CABundleKey]), bundle):
			return nil
		case err == nil:
			update := current.DeepCopy()
			update.Data = map[string]string{CABundleKey: string(bundle)}
			_, err = maps.Update(ctx, update, metav1.UpdateOptions{})
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("publish the uplink's CA: %w", err)
		}
		return nil
	}
	return errors.New("the published CA kept changing while it was written")
}

func (s *Store) renewServing(signer *authority) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.serving != nil && bytes.Equal(s.signer, signer.cert.Raw) && s.serving.Leaf.NotAfter.Sub(now) > ServingLife/2 {
		return nil
	}
	serving, err := signer.serving(now, s.host)
	if err != nil {
		return err
	}
	s.serving, s.signer = serving, signer.cert.Raw
	return nil
}

func (s *Store) ensureMetricsToken(ctx context.Context) error {
	secrets := s.client.CoreV1().Secrets(s.namespace)
	secret, err := secrets.Get(ctx, MetricsSecretName, metav1.GetOptions{})
	if err == nil && len(secret.Data[MetricsTokenKey]) > 0 {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the metrics token: %w", err)
	}
	var random [32]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("make the metrics token: %w", err)
	}
	token := []byte(base64.RawURLEncoding.EncodeToString(random[:]))
	if err == nil { // exists, but is empty
		update := secret.DeepCopy()
		update.Data = map[string][]byte{MetricsTokenKey: token}
		_, err = secrets.Update(ctx, update, metav1.UpdateOptions{})
	} else {
		_, err = secrets.Create(ctx, &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: MetricsSecretName, Namespace: s.namespace},
			Data:       map[string][]byte{MetricsTokenKey: token},
		}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("store the metrics token: %w", err)
	}
	return nil
}
