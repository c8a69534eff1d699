package controlplane

import (
	"fmt"
	"os"
)

// Names of the key pairs in the folder pki.
const (
	clusterAuthority  = "ca"
	proxyAuthority    = "front-proxy-ca"
	serverPair        = "apiserver"
	kubeletClientPair = "apiserver-kubelet-client"
	proxyClientPair   = "front-proxy-client"
	signingPair       = "service-accounts"
	adminPair         = "admin"
	managerPair       = "controller-manager"
	schedulerPair     = "scheduler"
	proxyPair         = "proxy"
)

// identities holds the cluster's authority and the pairs that later steps embed; every
// pair is also in a file, from which the components read theirs.
type identities struct {
	cluster authority
	pairs   map[string]pair
}

// loadIdentities reads the identities in the folder dir and makes those that are missing.
func loadIdentities(dir string) (*identities, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of keys: %w", err)
	}
	cluster, err := loadAuthority(dir, clusterAuthority)
	if err != nil {
		return nil, err
	}
	// An authority of its own: the API server believes the holder of one of its
	// certificates which user a request is from.
	proxy, err := loadAuthority(dir, proxyAuthority)
	if err != nil {
		return nil, err
	}
	result := &identities{cluster: cluster, pairs: make(map[string]pair)}
	for _, one := range []struct {
		pair   string
		issuer authority
		who    identity
	}{
		{serverPair, cluster, identity{name: "kube-apiserver", hosts: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc." + ClusterDomain,
			Address().String(), firstService().String(), "127.0.0.1",
		}}},
		{kubeletClientPair, cluster, identity{name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}},
		{proxyClientPair, proxy, identity{name: "front-proxy-client"}},
		{adminPair, cluster, identity{name: "kubernetes-admin", groups: []string{"system:masters"}}},
		{managerPair, cluster, identity{name: "system:kube-controller-manager"}},
		{schedulerPair, cluster, identity{name: "system:kube-scheduler"}},
		{proxyPair, cluster, identity{name: "system:kube-proxy"}},
	} {
		p, err := loadOrMake(dir, one.pair, func() (pair, error) { return one.issuer.issue(one.who) })
		if err != nil {
			return nil, err
		}
		result.pairs[one.pair] = p
	}
	if _, err := loadOrMake(dir, signingPair, newSigningKey); err != nil {
		return nil, err
	}
	return result, nil
}

func loadAuthority(dir, name string) (authority, error) {
	p, err := loadOrMake(dir, name, func() (pair, error) {
		a, err := newAuthority("carve-e2e-" + name)
		return a.pair, err
	})
	if err != nil {
		return authority{}, err
	}
	return parseAuthority(p)
}
