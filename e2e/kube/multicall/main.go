// Command multicall is the upstream Kubernetes of the test cluster in one
// binary: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet,
// kube-proxy, kubectl and etcd, each an applet.
//
// The applet is the base name under which the binary is called, or else its
// first argument:
//
//	ln -s multicall kubectl; ./kubectl get nodes
//	./multicall kube-apiserver --help
//
// One binary instead of seven, because they share nine tenths of their code and
// building and linking it is what takes the time. Each applet is a process of its
// own all the same: the components keep global state (feature gates, metrics
// registries, klog) and must not share an address space.
//
// The command, with coredns below it, is a module by itself so that its dependencies, which
// decide how long its build is good for, change only when the version of Kubernetes does.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// applets maps the name of each applet to what runs it. A runner reads os.Args,
// from which the name of the multi-call binary has been taken off, and returns the
// exit code.
var applets = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          runAPIServer,
	"kube-controller-manager": runControllerManager,
	"kube-proxy":              runProxy,
	"kube-scheduler":          runScheduler,
	"kubectl":                 runKubectl,
	"kubelet":                 runKubelet,
}

func main() {
	if run, ok := applets[filepath.Base(os.Args[0])]; ok {
		os.Exit(run())
	}
	if len(os.Args) > 1 {
		if run, ok := applets[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			os.Exit(run())
		}
	}
	fmt.Fprintf(os.Stderr, "usage: %s APPLET [ARGUMENT...]\napplets: %s\n",
		filepath.Base(os.Args[0]), strings.Join(names(), " "))
	os.Exit(2)
}

func names() []string {
	all := make([]string, 0, len(applets))
	for name := range applets {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
