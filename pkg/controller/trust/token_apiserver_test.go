//go:build apiserver

package trust

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The test has a real API server (with its kubeconfig in KUBECONFIG) review the tokens that it
// issues.
func TestTokensOfARealAPIServer(t *testing.T) {
	config := must.Get(clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")))(t)
	client := kubernetes.NewForConfigOrDie(config)
	const namespace = "identity"
	create(t, client, namespace)
	accounts := client.CoreV1().ServiceAccounts(namespace)
	issue := func(account, pod, audience string) string {
		t.Helper()
		request := &authenticationv1.TokenRequest{}
		if audience != "" {
			request.Spec.Audiences = []string{audience}
		}
		if pod != "" {
			request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod}
		}
		answer := must.Get(accounts.CreateToken(t.Context(), account, request, metav1.CreateOptions{}))(t)
		return answer.Status.Token
	}
	a := NewAuthenticator(client, namespace, "carve-node")
	denied := func(node, token string) string {
		_, err := a.Authenticate(t.Context(), &lvmdv1.Hello{NodeName: node, Token: token})
		var reason *uplink.DeniedError
		if err != nil && !errors.As(err, &reason) {
			t.Errorf("not a denial: %v", err)
		}
		if reason == nil {
			return ""
		}
		return reason.Reason
	}
	good, deleted := issue("carve-node", "agent", "carve-uplink"), issue("carve-node", "deleted", "carve-uplink")
	// The API server must accept what it signed, if it has not expired.
	past := func(claims map[string]any) {
		now := time.Now()
		claims["iat"], claims["nbf"], claims["exp"] = now.Add(-2*time.Hour).Unix(), now.Add(-2*time.Hour).Unix(), now.Add(-time.Minute).Unix()
	}
	for name, test := range map[string]struct{ node, token, denied string }{
		"the agent's, for its own node":    {"node-1", good, ""},
		"the agent's, for another node":    {"node-2", good, `bound to node "node-1"`},
		"for another audience":             {"node-1", issue("carve-node", "agent", "elsewhere"), "audience"},
		"for the API server itself":        {"node-1", issue("carve-node", "agent", ""), "audience"},
		"that expired":                     {"node-1", resign(t, good, past), "expired at"},
		"signed again, and not expired":    {"node-1", resign(t, good, func(map[string]any) {}), ""},
		"of a Pod of another account":      {"node-1", issue("other", "foreign", "carve-uplink"), "only"},
		"of the account, without a Pod":    {"node-1", issue("carve-node", "", "carve-uplink"), "bound to node"},
		"with a signature that is not its": {"node-1", good[:len(good)-8] + "AAAAAAAA", "does not accept"},
		"of a Pod that is still there":     {"node-1", deleted, ""},
	} {
		if got := denied(test.node, test.token); test.denied == "" && got != "" || !strings.Contains(got, test.denied) {
			t.Errorf("a token %s: denied %q, want %q", name, got, test.denied)
		}
	}
	var atOnce int64
	must.Succeed(t, client.CoreV1().Pods(namespace).Delete(t.Context(), "deleted", metav1.DeleteOptions{GracePeriodSeconds: &atOnce}))
	waittest.Until(t, "the token of a Pod that was deleted is not accepted any more", func() bool { return denied("node-1", deleted) != "" })
}

// resign returns a token with other claims, signed with the cluster's own key next to its
// administrator's kubeconfig. TokenRequests are for at least ten minutes, too long to wait for one
// to expire.
func resign(t *testing.T, token string, change func(claims map[string]any)) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki", "service-accounts.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		t.Fatal("the cluster's key is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // keep times as whole numbers
	must.Succeed(t, decoder.Decode(&claims))
	change(claims)
	if text, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := header + "." + base64.RawURLEncoding.EncodeToString(text)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// create creates a namespace with two accounts and their Pods on one node, until the test ends.
func create(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	ctx := context.Background()
	must.Get(client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { _ = client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}) })
	for _, name := range []string{"carve-node", "other"} {
		must.Get(client.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(ctx, "node-1", metav1.DeleteOptions{}) })
	for name, account := range map[string]string{"agent": "carve-node", "deleted": "carve-node", "foreign": "other"} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
			NodeName: "node-1", ServiceAccountName: account, Containers: []v1.Container{{Name: "c", Image: "none"}}}}
		must.Get(client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}))(t)
	}
}
