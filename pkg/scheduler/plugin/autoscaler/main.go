// Command autoscaler says what the Cluster Autoscaler would do with nodes. As it does, it asks the plugins of the
// scheduler's default profile. It is for tests.
//
//	KUBECONFIG=FILE autoscaler remove NODE      # "removable", or which Pod fits on no other node, and why
//	KUBECONFIG=FILE autoscaler add < NODE.json  # how many such nodes the Pods that wait for one need
package main

import (
	"cmp"
	"context"
	"encoding/json"
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

// startupTaint begins the keys of taints that the autoscaler waits to be removed.
const startupTaint = "startup-taint.cluster-autoscaler.kubernetes.io/"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "remove":
		s, err := simulate(ctx)
		if err != nil {
			return err
		}
		return s.remove(ctx, args[1])
	case len(args) == 1 && args[0] == "add":
		template := &v1.Node{}
		if err := json.NewDecoder(os.Stdin).Decode(template); err != nil {
			return fmt.Errorf("read a Node from standard input: %w", err)
		}
		s, err := simulate(ctx)
		if err != nil {
			return err
		}
		return s.add(ctx, template)
	}
	return errors.New("want remove NODE, or add")
}

// lister is the cluster as the plugins see it, once there is one.
type lister struct{ fwk.SharedLister }

// simulation is the cluster as it would be.
type simulation struct {
	scheduler framework.Framework
	snapshot  *lister
	nodes     []*v1.Node
	// placed are Pods that have a node, in the cluster or in the simulation; waiting are the others.
	placed, waiting []*v1.Pod
}

// simulate reads the cluster.
func simulate(ctx context.Context) (*simulation, error) {
	server, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		return nil, err
	}
	profile, err := latest.Default()
	if err != nil {
		return nil, err
	}
	// Without devices in the cluster: the plugin for them would need more than informers.
	enabled := &profile.Profiles[0].Plugins.MultiPoint.Enabled
	*enabled = slices.DeleteFunc(*enabled, func(p config.Plugin) bool { return p.Name == names.DynamicResources })
	metrics.Register()
	all, s := informers.NewSharedInformerFactory(client, 0), &simulation{snapshot: &lister{}}
	nodes, pods := all.Core().V1().Nodes().Lister(), all.Core().V1().Pods().Lister()
	s.scheduler, err = runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile.Profiles[0],
		runtime.WithInformerFactory(all), runtime.WithSnapshotSharedLister(s.snapshot),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(all.Storage().V1().CSINodes().Lister())))
	if err != nil {
		return nil, err
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	if s.nodes, err = nodes.List(labels.Everything()); err != nil {
		return nil, err
	}
	existing, err := pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, pod := range existing {
		if pod.Spec.NodeName != "" {
			s.placed = append(s.placed, pod)
		} else {
			s.waiting = append(s.waiting, pod)
		}
	}
	return s, nil
}

// remove prints whether a node can be removed.
func (s *simulation) remove(ctx context.Context, node string) error {
	on := func(pod *v1.Pod) bool { return pod.Spec.NodeName == node }
	var move []*v1.Pod
	for _, pod := range s.placed {
		if on(pod) {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = ""
			move = append(move, pod)
		}
	}
	s.placed = slices.DeleteFunc(s.placed, on)
	s.nodes = slices.DeleteFunc(s.nodes, func(n *v1.Node) bool { return n.Name == node })
	for _, pod := range move {
		if why, err := s.place(ctx, pod); err != nil || why != "" {
			fmt.Fprintf(os.Stdout, "Pod %s fits on no other node: %s\n", pod.Name, why)
			return err
		}
	}
	fmt.Fprintln(os.Stdout, "removable")
	return nil
}

// add prints how many nodes like a template the waiting Pods need. Nodes that have a start-up taint stand for what they
// will be, as do those that were added before.
func (s *simulation) add(ctx context.Context, template *v1.Node) error {
	like := func(name string) *v1.Node {
		node := template.DeepCopy()
		node.Name = name
		node.Labels[v1.LabelHostname] = name
		return node
	}
	for i, node := range s.nodes {
		if slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return strings.HasPrefix(t.Key, startupTaint) }) {
			s.nodes[i] = like(node.Name)
		}
	}
	added := 0
	for _, pod := range s.waiting {
		why, err := s.place(ctx, pod)
		if err != nil {
			return err
		}
		if why == "" {
			continue
		}
		before := s.nodes
		s.nodes = append(slices.Clone(before), like(fmt.Sprint("template-node-", added)))
		if why, err = s.place(ctx, pod); err != nil {
			return err
		}
		if why != "" {
			s.nodes = before
			fmt.Fprintf(os.Stdout, "Pod %s fits on no further node: %s\n", pod.Name, why)
			continue
		}
		added++
	}
	fmt.Fprintln(os.Stdout, added)
	return nil
}

// place gives a Pod the first node that it fits on, or returns why there is none.
func (s *simulation) place(ctx context.Context, pod *v1.Pod) (string, error) {
	s.snapshot.SharedLister = cache.NewSnapshot(s.placed, s.nodes)
	state := framework.NewCycleState()
	only, status, _ := s.scheduler.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return status.Message(), nil
	}
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return "", err
	}
	var reasons []string
	for _, info := range nodes {
		name := info.Node().Name
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			reasons = append(reasons, name+": not one of "+strings.Join(only.NodeNames.UnsortedList(), ", "))
			continue
		}
		status := s.scheduler.RunFilterPlugins(ctx, state, pod, info)
		if status.IsSuccess() {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = name
			s.placed = append(s.placed, pod)
			return "", nil
		}
		reasons = append(reasons, name+": "+status.Message())
	}
	return cmp.Or(strings.Join(reasons, "; "), "there is none"), nil
}
