// Command removable says whether the Cluster Autoscaler would find a place for the Pods of a node elsewhere, and so
// remove it: "removable", or why not. As it does, it asks the plugins of the scheduler's default profile, for the Pods
// as they are but without their node. It is for tests.
//
//	KUBECONFIG=FILE removable NODE
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if len(os.Args) != 2 {
		fail(errors.New("want the name of a node"))
	}
	if err := remove(ctx, os.Args[1]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// lister is the cluster as the plugins see it, once there is one.
type lister struct{ fwk.SharedLister }

// remove prints whether a node can be removed.
func remove(ctx context.Context, node string) error {
	server, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		return err
	}
	profile, err := latest.Default()
	if err != nil {
		return err
	}
	// Without devices in the cluster: the plugin for them would need more than informers.
	enabled := &profile.Profiles[0].Plugins.MultiPoint.Enabled
	*enabled = slices.DeleteFunc(*enabled, func(p config.Plugin) bool { return p.Name == names.DynamicResources })
	metrics.Register()
	all, snapshot := informers.NewSharedInformerFactory(client, 0), &lister{}
	nodes, pods := all.Core().V1().Nodes().Lister(), all.Core().V1().Pods().Lister()
	scheduler, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile.Profiles[0],
		runtime.WithInformerFactory(all), runtime.WithSnapshotSharedLister(snapshot),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(all.Storage().V1().CSINodes().Lister())))
	if err != nil {
		return err
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	existing, err := nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	running, err := pods.List(labels.Everything())
	if err != nil {
		return err
	}
	var stay, move []*v1.Pod
	for _, pod := range running {
		switch {
		case pod.Spec.NodeName == node:
			pod = pod.DeepCopy()
			pod.Spec.NodeName = ""
			move = append(move, pod)
		case pod.Spec.NodeName != "":
			stay = append(stay, pod)
		}
	}
	snapshot.SharedLister = cache.NewSnapshot(stay, existing)
	for _, pod := range move {
		if why, err := place(ctx, scheduler, snapshot, pod, node); err != nil || why != "" {
			fmt.Fprintf(os.Stdout, "Pod %s fits on no other node: %s\n", pod.Name, why)
			return err
		}
	}
	fmt.Fprintln(os.Stdout, "removable")
	return nil
}

// place returns why a Pod fits on no node but one, or nothing.
func place(ctx context.Context, scheduler framework.Framework, snapshot fwk.SharedLister, pod *v1.Pod, not string) (string, error) {
	state := framework.NewCycleState()
	only, status, _ := scheduler.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return status.Message(), nil
	}
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		return "", err
	}
	var reasons []string
	for _, info := range nodes {
		name := info.Node().Name
		if name == not {
			continue
		}
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			reasons = append(reasons, name+": not one of "+strings.Join(only.NodeNames.UnsortedList(), ", "))
			continue
		}
		status := scheduler.RunFilterPlugins(ctx, state, pod, info)
		if status.IsSuccess() {
			return "", nil
		}
		reasons = append(reasons, name+": "+status.Message())
	}
	return cmp.Or(strings.Join(reasons, "; "), "there is none"), nil
}
