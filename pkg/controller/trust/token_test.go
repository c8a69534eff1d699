package trust

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

func jwt(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestAuthenticate(t *testing.T) {
	expiry := time.Now().Add(time.Hour).Truncate(time.Second)
	tokenOf := func(account, audience, node string, expiry time.Time) string {
		return jwt(fmt.Sprintf(`{"exp":%d,"sub":"system:serviceaccount:%s","aud":["%s"],"kubernetes.io":{"node":{"name":"%s"}}}`,
			expiry.Unix(), account, audience, node))
	}
	goodToken := tokenOf("carve-system:carve-node", "carve-uplink", "node-1", expiry)
	good := authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{"carve-uplink"},
		User: authenticationv1.UserInfo{Username: "system:serviceaccount:carve-system:carve-node",
			Extra: map[string]authenticationv1.ExtraValue{extraNodeName: {"node-1"}}},
	}
	for name, test := range map[string]struct {
		token  string
		node   string
		review func(*authenticationv1.TokenReviewStatus)
		fails  error
		denied string // part of the reason; empty if accepted
		// unasked means that the API server gets no review.
		unasked bool
	}{
		"a token of another account is refused unasked": {token: tokenOf("default:default", "carve-uplink", "node-1", expiry), node: "node-1",
			denied: "only", unasked: true},
		"a token for another audience is refused unasked": {token: tokenOf("carve-system:carve-node", "api", "node-1", expiry), node: "node-1",
			denied: "audience", unasked: true},
		"a token of another node is refused unasked": {token: tokenOf("carve-system:carve-node", "carve-uplink", "node-2", expiry), node: "node-1",
			denied: "bound to node", unasked: true},
		"a token bound to the node is accepted": {token: goodToken, node: "node-1"},
		"a node cannot speak for another": {token: goodToken, node: "node-2",
			denied: "bound to node", unasked: true},
		"a token that the API server refuses is refused": {token: goodToken, node: "node-1",
			review: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, denied: "does not accept"},
		"a token for another audience is refused": {token: goodToken, node: "node-1",
			review: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"api"} }, denied: "audience"},
		"another service account is refused": {token: goodToken, node: "node-1",
			review: func(s *authenticationv1.TokenReviewStatus) {
				s.User.Username = "system:serviceaccount:other:carve-node"
			}, denied: "only"},
		"a token that is bound to no node is refused": {token: goodToken, node: "node-1",
			review: func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil }, denied: "bound to node"},
		"a token that expired is refused":          {token: tokenOf("carve-system:carve-node", "carve-uplink", "node-1", expiry.Add(-2*time.Hour)), node: "node-1", denied: "expired at", unasked: true},
		"a token that never expires is refused":    {token: jwt(`{}`), node: "node-1", denied: "never expires", unasked: true},
		"a token that is no JWT is refused":        {token: "opaque", node: "node-1", denied: "parts", unasked: true},
		"a Hello without a token is refused":       {token: "", node: "node-1", denied: "required", unasked: true},
		"a Hello without a node name is refused":   {token: goodToken, node: "", denied: "required", unasked: true},
		"an API server that fails is not a denial": {token: goodToken, node: "node-1", fails: errors.New("down")},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			asked := false
			client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
				asked = true
				review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
				if review.Spec.Token != test.token || strings.Join(review.Spec.Audiences, ",") != "carve-uplink" {
					t.Errorf("reviewed %+v", review.Spec)
				}
				status := *good.DeepCopy()
				if test.review != nil {
					test.review(&status)
				}
				return true, &authenticationv1.TokenReview{Status: status}, test.fails
			})
			a := NewAuthenticator(client, "carve-system", "carve-node")
			grant, err := a.Authenticate(t.Context(), &lvmdv1.Hello{NodeName: test.node, Token: test.token})
			if asked == test.unasked {
				t.Errorf("the API server was asked: %t", asked)
			}
			var denied *uplink.DeniedError
			switch {
			case test.denied != "":
				if !errors.As(err, &denied) || !strings.Contains(denied.Reason, test.denied) {
					t.Errorf("got %v, want a denial that says %q", err, test.denied)
				}
			case test.fails != nil:
				if err == nil || errors.As(err, &denied) {
					t.Errorf("got %v, want an error that is no denial", err)
				}
			case err != nil:
				t.Error(err)
			case !grant.ReauthenticateBy.Equal(expiry.Add(-expiryMargin)):
				t.Errorf("renew by %v, token ends at %v", grant.ReauthenticateBy, expiry)
			}
		})
	}
}
