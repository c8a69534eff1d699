// Command autoscaler predicts, for tests, what the Cluster Autoscaler would do with nodes. Like the
// autoscaler, it asks the plugins of the default profile of the scheduler.
//
//	KUBECONFIG=FILE autoscaler remove NODE      # "removable", or which Pod fits on no other node, and why
//	KUBECONFIG=FILE autoscaler add < NODE.json  # the number of such nodes that the waiting Pods need
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

// startupTaint is the prefix of taints whose removal the autoscaler waits for.
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

// lister serves the current snapshot to the plugins, which get it before the first exists.
type lister struct{ fwk.SharedLister }

type simulation struct {
	scheduler framework.Framework
	snapshot  *lister
	nodes     []*v1.Node
	// placed Pods have a node, in the cluster or in the simulation; waiting ones have none.
	placed, waiting []*v1.Pod
}

// simulate loads the cluster.
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
	// Dynamic resources need more than informers, and the tests use none.
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

// add prints the number of nodes like template that the waiting Pods need. It treats nodes with a
// start-up taint as ready, like those that it adds.
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

// place assigns a Pod to the first node that it fits on, or returns why none does.
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
