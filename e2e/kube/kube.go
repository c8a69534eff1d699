// Package kube builds the upstream Kubernetes that test clusters run: one multi-call
// binary of which every component is an applet, from the nested module multicall.
//
// The binary is kept in the harness' cache. Building it takes about five minutes on two
// cores from an empty Go build cache; taking it from the harness' cache takes none.
//
// An applet is run as `BINARY APPLET ARGUMENT...`, or through a link that has its name.
package kube

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
)

// The applets.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubelet           = "kubelet"
	Proxy             = "kube-proxy"
	Kubectl           = "kubectl"
)

// The programs of the module.
const (
	kubernetes = "kubernetes"
	coreDNS    = "coredns"
)

// Version is the version of Kubernetes, as the components and kubectl report it. The
// build fails if the module is made of another.
const Version = "v1.37.2"

// Build returns the path of the multi-call binary, made now if the cache does not have
// it. Progress is written to progress, which may be nil. Callers in several processes may
// run at once: one builds, the others wait.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	return build(ctx, kubernetes, progress)
}

// BuildDNS is Build for CoreDNS, which is made together with the multi-call binary.
func BuildDNS(ctx context.Context, progress io.Writer) (string, error) {
	return build(ctx, coreDNS, progress)
}

func build(ctx context.Context, program string, progress io.Writer) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "e2e", "kube", "multicall")
	if err := checkVersion(source); err != nil {
		return "", err
	}
	programs, err := gobuild.Cached(ctx, gobuild.Program{
		Name:      kubernetes,
		Dir:       source,
		Also:      []string{coreDNS},
		Variables: Variables(Version),
	}, progress)
	if err != nil {
		return "", err
	}
	return filepath.Join(programs, program), nil
}

// Variables returns the linker's settings by which Kubernetes' programs know their version.
func Variables(version string) map[string]string {
	return map[string]string{
		"k8s.io/component-base/version.gitVersion":   version,
		"k8s.io/component-base/version.gitTreeState": "clean",
	}
}

// checkVersion makes sure that the version which the binary will report is the one it
// is made of.
func checkVersion(source string) error {
	content, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return fmt.Errorf("read the version of Kubernetes: %w", err)
	}
	if !strings.Contains(string(content), "\tk8s.io/kubernetes "+Version+"\n") {
		return fmt.Errorf("%s does not require k8s.io/kubernetes %s", filepath.Join(source, "go.mod"), Version)
	}
	return nil
}
