package kube

import "testing"

func TestAModuleIsMadeOfAnyVersion(t *testing.T) {
	const (
		upstream = `module k8s.io/kubernetes

go 1.24.0

require (
	go.etcd.io/etcd/client/v3 v3.5.21
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kube-scheduler => ./staging/src/k8s.io/kube-scheduler
)
`
		want = `module github.com/carve-csi/carve/e2e/kube/multicall

go 1.24.0

require (
	go.etcd.io/etcd/client/v3 v3.5.21
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => k8s.io/api v0.33.13
	k8s.io/kube-scheduler => k8s.io/kube-scheduler v0.33.13
)

require k8s.io/kubernetes v1.33.13
`
	)
	if got := string(moduleOf("v1.33.13", []byte(upstream))); got != want {
		t.Errorf("the module is\n%s\nwant\n%s", got, want)
	}
}

func TestOnlyReleasesAreBuilt(t *testing.T) {
	for _, version := range []string{"", "1.33.13", "v1.33", "v1.33.13-rc.1", "latest"} {
		if path, err := BuildVersion(t.Context(), version, nil); err == nil {
			t.Errorf("version %q gives %s, want an error", version, path)
		}
	}
}
