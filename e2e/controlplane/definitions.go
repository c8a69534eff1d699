package controlplane

import (
	"path/filepath"
	"strconv"

	"github.com/carve-csi/carve/e2e/kube"
)

// What is in the folder besides the administrator's kubeconfig.
const (
	pkiFolder       = "pki"
	logFolder       = "log"
	etcdFolder      = "etcd"
	etcdConfig      = "etcd.yaml"
	admissionConfig = "admission.yaml"
	managerConfig   = "controller-manager.kubeconfig"
	schedulerConfig = "scheduler.kubeconfig"
	proxyConfig     = "proxy.kubeconfig"
)

// Where components listen that only components, or a person who looks into the
// namespace, talk to.
const (
	etcdClientURL = "http://127.0.0.1:2379"
	etcdPeerURL   = "http://127.0.0.1:2380"
	managerURL    = "https://127.0.0.1:10257"
	schedulerURL  = "https://127.0.0.1:10259"
	proxyAddress  = "127.0.0.1:10256"
)

// definition is what makes a component.
type definition struct {
	arguments []string
	// health is the URL that answers 200 once it can be used.
	health string
}

// definitions returns the components by name.
func (c *ControlPlane) definitions() map[string]definition {
	return map[string]definition{
		kube.Etcd: {
			arguments: []string{"--config-file=" + filepath.Join(c.dir, etcdConfig)},
			health:    etcdClientURL + "/readyz",
		},
		kube.APIServer: {
			arguments: c.apiServerArguments(),
			health:    "https://" + Endpoint().String() + "/readyz",
		},
		kube.ControllerManager: {
			arguments: c.managerArguments(),
			health:    managerURL + "/healthz",
		},
		kube.Scheduler: {
			arguments: c.clientArguments(schedulerConfig),
			health:    schedulerURL + "/readyz",
		},
		kube.Proxy: {
			arguments: c.proxyArguments(),
			health:    "http://" + proxyAddress + "/healthz",
		},
	}
}

// etcdConfiguration returns etcd's configuration file: one member, no flushing to disk.
func (c *ControlPlane) etcdConfiguration() []byte {
	return []byte("name: default\n" +
		"data-dir: " + strconv.Quote(filepath.Join(c.dir, etcdFolder)) + "\n" +
		"listen-client-urls: " + etcdClientURL + "\n" +
		"advertise-client-urls: " + etcdClientURL + "\n" +
		"listen-peer-urls: " + etcdPeerURL + "\n" +
		"initial-advertise-peer-urls: " + etcdPeerURL + "\n" +
		"initial-cluster: default=" + etcdPeerURL + "\n" +
		"auto-compaction-mode: periodic\n" +
		"auto-compaction-retention: 5m\n" +
		"unsafe-no-fsync: true\n" +
		"log-level: warn\n")
}

// limitedCritical is the API server's admission configuration for LimitCritical.
const limitedCritical = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`

func (c *ControlPlane) apiServerArguments() []string {
	pki := filepath.Join(c.dir, pkiFolder)
	clientCA, _ := pairFiles(pki, clusterAuthority)
	proxyCA, _ := pairFiles(pki, proxyAuthority)
	serving, servingKey := pairFiles(pki, serverPair)
	kubelet, kubeletKey := pairFiles(pki, kubeletClientPair)
	proxy, proxyKey := pairFiles(pki, proxyClientPair)
	verify, sign := pairFiles(pki, signingPair)
	var admission []string
	if c.limitCritical {
		admission = []string{"--admission-control-config-file=" + filepath.Join(c.dir, admissionConfig)}
	}
	return append(admission,
		"--advertise-address="+Address().String(),
		"--bind-address="+Address().String(),
		"--secure-port="+strconv.Itoa(apiServerPort),
		"--etcd-servers="+etcdClientURL,
		"--service-cluster-ip-range="+ServiceSubnet,
		"--tls-cert-file="+serving,
		"--tls-private-key-file="+servingKey,
		"--client-ca-file="+clientCA,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		// Watches are ended when the server stops; without it they are waited for.
		"--shutdown-watch-termination-grace-period=1s",
		"--kubelet-client-certificate="+kubelet,
		"--kubelet-client-key="+kubeletKey,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc."+ClusterDomain,
		"--service-account-key-file="+verify,
		"--service-account-signing-key-file="+sign,
		"--requestheader-client-ca-file="+proxyCA,
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+proxy,
		"--proxy-client-key-file="+proxyKey,
	)
}

func (c *ControlPlane) managerArguments() []string {
	pki := filepath.Join(c.dir, pkiFolder)
	ca, _ := pairFiles(pki, clusterAuthority)
	_, sign := pairFiles(pki, signingPair)
	// A node that has lost its power is noticed in three heartbeats instead of five.
	grace := []string{"--node-monitor-grace-period=30s"}
	if c.fakeNodes {
		grace = []string{"--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"}
	}
	return append(append(c.clientArguments(managerConfig), grace...),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+sign,
		"--root-ca-file="+ca,
		"--allocate-node-cidrs=true",
		"--cluster-cidr="+PodSubnet,
		"--node-cidr-mask-size="+strconv.Itoa(NodePodBits),
		"--service-cluster-ip-range="+ServiceSubnet,
	)
}

// proxyArguments are those of the one proxy of the cluster. The nodes' kernels need not
// know nftables: what they send to a Service goes to the gateway, as all that is not
// theirs does, and comes back from there, because the gateway takes the sender's place.
func (c *ControlPlane) proxyArguments() []string {
	return []string{
		"--kubeconfig=" + filepath.Join(c.dir, proxyConfig),
		// Its own node, of which it wants to know the addresses. Any will do.
		"--hostname-override=" + c.proxyNode,
		"--bind-address=" + Address().String(),
		"--healthz-bind-address=" + proxyAddress,
		"--metrics-bind-address=127.0.0.1:10249",
		"--proxy-mode=nftables",
		"--masquerade-all",
		"--cluster-cidr=" + PodSubnet,
		"--conntrack-max-per-core=0",
	}
}

// clientArguments are those that the controller-manager and the scheduler share. There
// is one of each, so neither waits for a lease.
func (c *ControlPlane) clientArguments(config string) []string {
	file := filepath.Join(c.dir, config)
	arguments := []string{
		"--kubeconfig=" + file,
		"--authentication-kubeconfig=" + file,
		"--authorization-kubeconfig=" + file,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
	}
	if c.clientRate > 0 {
		arguments = append(arguments, "--kube-api-qps="+strconv.Itoa(c.clientRate), "--kube-api-burst="+strconv.Itoa(c.clientRate))
	}
	return arguments
}
