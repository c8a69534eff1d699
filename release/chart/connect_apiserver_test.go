//go:build apiserver

package chart_test

import (
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// connect returns a client of the real API server whose kubeconfig is in KUBECONFIG, and what it was
// made of.
func connect(t *testing.T) (kubernetes.Interface, *rest.Config) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // as fast as the server answers
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, config
}
