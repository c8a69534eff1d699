package trust

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/uplink"
)

const (
	// extraNodeName is where the API server reports the node of a token's Pod
	// (k8s.io/apiserver/pkg/authentication/serviceaccount).
	extraNodeName = "authentication.kubernetes.io/node-name"
	// expiryMargin is how long before its token expires a session must be renewed.
	expiryMargin = 30 * time.Second
	// maxReviews limits the reviews in flight, to spare the API server when a whole fleet
	// reconnects.
	maxReviews = 64
)

// Authenticator asks the API server about a node's token to verify the node's identity.
type Authenticator struct {
	client kubernetes.Interface
	user   string // the only user that may connect
	slots  chan struct{}
}

// NewAuthenticator returns an Authenticator for the tokens of one service account.
func NewAuthenticator(client kubernetes.Interface, namespace, serviceAccount string) *Authenticator {
	return &Authenticator{
		client: client,
		user:   "system:serviceaccount:" + namespace + ":" + serviceAccount,
		slots:  make(chan struct{}, maxReviews),
	}
}

// Authenticate fits uplink.ServerConfig. A token is valid if the API server accepts it for our
// audience, it belongs to the agents' service account, and it is bound to a Pod on the node that
// the peer claims to be. The API server rejects tokens that have expired or whose Pod is gone.
func (a *Authenticator) Authenticate(ctx context.Context, hello *lvmdv1.Hello) (uplink.Grant, error) {
	if hello.GetToken() == "" || hello.GetNodeName() == "" {
		return uplink.Grant{}, &uplink.DeniedError{Reason: "node_name and token are required"}
	}
	claims, err := readToken(hello.GetToken())
	if err != nil {
		return uplink.Grant{}, &uplink.DeniedError{Reason: "token: " + err.Error()}
	}
	if err := a.precheck(claims, hello.GetNodeName()); err != nil {
		return uplink.Grant{}, err
	}
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return uplink.Grant{}, fmt.Errorf("waiting to review the token: %w", ctx.Err())
	}
	review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: hello.GetToken(), Audiences: []string{names.UplinkAudience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return uplink.Grant{}, fmt.Errorf("review the token: %w", err)
	}
	if err := a.check(&review.Status, hello.GetNodeName()); err != nil {
		return uplink.Grant{}, err
	}
	if err := claims.expired(); err != nil { // in case the review came from a cache
		return uplink.Grant{}, err
	}
	return uplink.Grant{ReauthenticateBy: claims.expiry().Add(-expiryMargin)}, nil
}

// precheck rejects a token by its own claims, to spare the API server reviews that must fail. It
// proves nothing: a token may claim anything.
func (a *Authenticator) precheck(c *tokenClaims, node string) error {
	switch {
	case !slices.Contains(c.Audience, names.UplinkAudience):
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is not for audience %q", names.UplinkAudience)}
	case c.Subject != a.user:
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is of %q, only %q may connect", c.Subject, a.user)}
	case c.Kubernetes.Node.Name != "" && c.Kubernetes.Node.Name != node:
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is bound to node %q, the peer says that it is node %q", c.Kubernetes.Node.Name, node)}
	}
	return c.expired()
}

func (a *Authenticator) check(s *authenticationv1.TokenReviewStatus, node string) error {
	switch {
	case !s.Authenticated:
		return &uplink.DeniedError{Reason: "the API server does not accept the token"}
	case !slices.Contains(s.Audiences, names.UplinkAudience):
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is not for audience %q", names.UplinkAudience)}
	case s.User.Username != a.user:
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is of %q, only %q may connect", s.User.Username, a.user)}
	}
	if bound := s.User.Extra[extraNodeName]; len(bound) != 1 || bound[0] != node {
		return &uplink.DeniedError{Reason: fmt.Sprintf("the token is bound to node %q, the peer says that it is node %q",
			strings.Join(bound, ","), node)}
	}
	return nil
}

type tokenClaims struct {
	Expiry     float64  `json:"exp"`
	Subject    string   `json:"sub"`
	Audience   []string `json:"aud"`
	Kubernetes struct {
		Node struct {
			Name string `json:"name"`
		} `json:"node"`
	} `json:"kubernetes.io"`
}

func (c *tokenClaims) expiry() time.Time { return time.Unix(int64(c.Expiry), 0) }

func (c *tokenClaims) expired() error {
	if !time.Now().Before(c.expiry()) {
		return &uplink.DeniedError{Reason: "the token expired at " + c.expiry().UTC().Format(time.RFC3339)}
	}
	return nil
}

// readToken decodes a JSON web token without verifying it; the API server does that.
func readToken(token string) (*tokenClaims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("it has %d parts, a JSON web token has 3", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, fmt.Errorf("its payload is not base64: %w", err)
	}
	claims := &tokenClaims{}
	if err := json.Unmarshal(payload, claims); err != nil {
		return nil, fmt.Errorf("its payload is not that of a service account's token: %w", err)
	}
	if claims.Expiry <= 0 {
		return nil, errors.New("it never expires, which a projected token does")
	}
	return claims, nil
}
