//go:build apiserver

package trust

import (
	"net/netip"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The API server selects the Pods by their account.
func TestAgentsOfARealAPIServer(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(must.Get(clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")))(t))
	const namespace = "agents"
	create(t, client, namespace)
	for name, ip := range map[string]string{"agent": "10.9.0.1", "foreign": "10.9.0.2"} {
		pod := must.Get(client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = v1.PodRunning, ip, []v1.PodIP{{IP: ip}, {IP: "2001:db8::" + ip[7:]}}
		pod.Status.HostIP, pod.Status.HostIPs = "192.0.2"+ip[6:], []v1.HostIP{{IP: "192.0.2" + ip[6:]}}
		must.Get(client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}))(t)
	}
	agents := must.Get(NewAgents(client, namespace, "carve-node"))(t)
	go agents.Run(t.Context())
	waittest.Until(t, "the agents are known", agents.Synced)
	for address, want := range map[string]bool{"10.9.0.1": true, "2001:db8::1": true, "192.0.2.1": true,
		"10.9.0.2": false, "2001:db8::2": false, "192.0.2.2": false} {
		if agents.Known(netip.MustParseAddr(address)) != want {
			t.Errorf("%s is known: %t, want %t", address, !want, want)
		}
	}
}
