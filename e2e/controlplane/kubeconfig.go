package controlplane

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// adminConfig is the file name of the administrator's kubeconfig.
const adminConfig = "admin.kubeconfig"

// kubeconfig returns a kubeconfig with p as the client's certificate and key.
func (i *identities) kubeconfig(p pair) ([]byte, error) {
	const name = "carve-e2e"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{
		Server:                   "https://" + Endpoint().String(),
		CertificateAuthorityData: i.cluster.certificate,
	}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: p.certificate, ClientKeyData: p.key}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write a kubeconfig: %w", err)
	}
	return content, nil
}

// AdminKubeconfig returns the path of a kubeconfig with all rights. Its server can be
// reached in the cluster's network namespace only.
func (c *ControlPlane) AdminKubeconfig() string { return filepath.Join(c.dir, adminConfig) }

// NodeKubeconfig returns a kubeconfig for the kubelet of the node called name, with a new
// certificate at each call.
func (c *ControlPlane) NodeKubeconfig(name string) ([]byte, error) {
	return c.issueKubeconfig(identity{name: "system:node:" + name, groups: []string{"system:nodes"}})
}

func (c *ControlPlane) issueKubeconfig(who identity) ([]byte, error) {
	p, err := c.identities.cluster.issue(who)
	if err != nil {
		return nil, err
	}
	return c.identities.kubeconfig(p)
}

// CA returns the certificate, in PEM, of the authority that signs the certificates of
// the API server and of all its clients: what a kubelet checks its clients by.
func (c *ControlPlane) CA() []byte { return c.identities.cluster.certificate }

// RESTConfig returns a client configuration with all rights that works from any network
// namespace, because it dials inside the cluster's. It sets no limit of its own on the
// rate of requests.
func (c *ControlPlane) RESTConfig() *rest.Config {
	admin := c.identities.pairs[adminPair]
	return &rest.Config{
		Host: "https://" + Endpoint().String(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.CA(),
			CertData: admin.certificate,
			KeyData:  admin.key,
		},
		Dial: c.namespace.DialContext,
		QPS:  -1,
	}
}
