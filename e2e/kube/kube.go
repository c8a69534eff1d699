// Package kube builds the upstream Kubernetes that test clusters run: one multi-call
// binary of which every component is an applet, from the nested module multicall.
//
// The binary is kept in the harness' cache, keyed by the sources of that module (with
// them the versions of everything it is made of) and the Go toolchain. Building it
// takes about five minutes on two cores from an empty Go build cache; taking it from
// the harness' cache takes none.
//
// An applet is run as `BINARY APPLET ARGUMENT...`, or through a link that has its name.
package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/checkout"
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

// Version is the version of Kubernetes, as the components and kubectl report it. The
// build fails if the module is made of another.
const Version = "v1.36.3"

// binaryName is the name of the binary in its cache entry.
const binaryName = "kubernetes"

// heartbeat is the time between two signs of life of a long build.
const heartbeat = 15 * time.Second

// Build returns the path of the multi-call binary, made now if the cache does not have
// it. Progress is told to progress, which may be nil. Callers in several processes may
// run at once: one builds, the others wait.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "e2e", "kube", "multicall")
	key, err := sourceKey(ctx, source)
	if err != nil {
		return "", err
	}
	entry, err := cache.Entry(ctx, "kubernetes", key, func(ctx context.Context, dir string) error {
		return build(ctx, source, filepath.Join(dir, binaryName), progress)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(entry, binaryName), nil
}

// sourceKey digests everything that decides what the binary is.
func sourceKey(ctx context.Context, source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", fmt.Errorf("list the sources in %s: %w", source, err)
	}
	files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
	files = append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum"))
	sources, err := cache.FileKey(files...)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir = source
	toolchain, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version: %w", err)
	}
	return cache.Key(sources, strings.TrimSpace(string(toolchain)), runtime.GOARCH, strings.Join(arguments("-"), " ")), nil
}

// arguments are those of go for building the binary at path output.
func arguments(output string) []string {
	return []string{
		"build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w" +
			" -X k8s.io/component-base/version.gitVersion=" + Version +
			" -X k8s.io/component-base/version.gitTreeState=clean",
		"-o", output, ".",
	}
}

func build(ctx context.Context, source, output string, progress io.Writer) error {
	if err := checkVersion(source); err != nil {
		return err
	}
	stop := report(progress)
	defer stop()
	command := exec.CommandContext(ctx, "go", arguments(output)...)
	command.Dir = source
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var complaints bytes.Buffer
	command.Stdout, command.Stderr = &complaints, &complaints
	if err := command.Run(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(command.Args[1:], " "), err, complaints.String())
	}
	return nil
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

// report tells progress that the build goes on until the returned function is called.
func report(progress io.Writer) (stop func()) {
	if progress == nil {
		return func() {}
	}
	fmt.Fprintf(progress, "building Kubernetes %s (about five minutes the first time)\n", Version)
	start := time.Now()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				fmt.Fprintf(progress, "building Kubernetes: %s\n", time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
