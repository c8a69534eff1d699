package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
)

var (
	release = regexp.MustCompile(`^v1\.\d+\.\d+$`)
	// modulePath and staged are the lines of the upstream go.mod that are true in its own
	// repository only.
	modulePath = regexp.MustCompile(`(?m)^module k8s\.io/kubernetes$`)
	staged     = regexp.MustCompile(`=> \./staging/src/(k8s\.io/[a-z-]+)`)
)

// older is the program of another version. It has what runs without nodes: what else the module
// multicall has is not called in the same way in all versions.
const older = `package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	applets := map[string]func() int{
		"etcd":                    runEtcd,
		"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
		"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	}
	if applets[filepath.Base(os.Args[0])] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	if run := applets[filepath.Base(os.Args[0])]; run != nil {
		os.Exit(run())
	}
	fmt.Fprintln(os.Stderr, "give etcd, kube-apiserver, kube-controller-manager or kube-scheduler, and its arguments")
	os.Exit(2)
}
`

// BuildVersion is Build for the control plane of any version of Kubernetes, such as v1.33.13, with
// the etcd that it names. The versions of all that it is made of, and their checksums, are those
// that the module k8s.io/kubernetes has in it.
func BuildVersion(ctx context.Context, version string, progress io.Writer) (string, error) {
	if version == Version {
		return Build(ctx, progress)
	}
	if !release.MatchString(version) {
		return "", fmt.Errorf("there is no Kubernetes %q: give a release such as %s", version, Version)
	}
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	etcd := filepath.Join(root, "e2e", "kube", "multicall", "etcd.go")
	key, err := cache.FileKey(etcd)
	if err != nil {
		return "", err
	}
	programs, err := cache.Entry(ctx, kubernetes+"-"+version, cache.Key(key, older, version, runtime.Version(), runtime.GOARCH), func(ctx context.Context, dir string) error {
		if progress != nil {
			fmt.Fprintf(progress, "building Kubernetes %s, once; it takes minutes\n", version)
		}
		return buildVersion(ctx, version, etcd, filepath.Join(dir, kubernetes))
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(programs, kubernetes), nil
}

// buildVersion builds the program of a version of Kubernetes, with the source of etcd, into the file
// output.
func buildVersion(ctx context.Context, version, etcd, output string) (err error) {
	dir, err := os.MkdirTemp("", "carve-kubernetes-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(older), 0o644); err != nil {
		return fmt.Errorf("write a program: %w", err)
	}
	if err := copyFile(etcd, filepath.Join(dir, filepath.Base(etcd))); err != nil {
		return err
	}
	answer, err := runGo(ctx, dir, "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	if err != nil {
		return err
	}
	var upstream struct{ Dir string }
	if err := json.Unmarshal(answer, &upstream); err != nil {
		return fmt.Errorf("find the sources of Kubernetes %s: %w", version, err)
	}
	if err := copyFile(filepath.Join(upstream.Dir, "go.sum"), filepath.Join(dir, "go.sum")); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(upstream.Dir, "go.mod"))
	if err != nil {
		return fmt.Errorf("read the versions of which Kubernetes %s is made: %w", version, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), moduleOf(version, content), 0o644); err != nil {
		return fmt.Errorf("write a module: %w", err)
	}
	// It adds the checksums of Kubernetes' own modules.
	if _, err := runGo(ctx, dir, "list", "-mod=mod", "-deps", "."); err != nil {
		return err
	}
	return gobuild.Build(ctx, gobuild.Program{Name: kubernetes, Dir: dir, Variables: Variables(version)}, output)
}

// moduleOf is the go.mod of the sources with a version of Kubernetes, whose own go.mod is
// upstream. That has the modules of its repository by their folders.
func moduleOf(version string, upstream []byte) []byte {
	module := modulePath.ReplaceAll(upstream, []byte("module github.com/carve-csi/carve/e2e/kube/multicall"))
	module = staged.ReplaceAll(module, []byte("=> ${1} v0"+version[len("v1"):]))
	return append(module, "\nrequire k8s.io/kubernetes "+version+"\n"...)
}

// runGo returns what the go command prints in a folder.
func runGo(ctx context.Context, dir string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go %v: %w\n%s%s", arguments, err, output, exit.Stderr)
	}
	return output, err
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	if err := os.WriteFile(to, content, 0o644); err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	return nil
}
