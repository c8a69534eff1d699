package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// nextWithout is the advice if a workload of Carve does not exist.
const nextWithout = "install Carve, or name the namespace that it is installed in: --carve-namespace"

// checkControllers compares the controllers' Pods with their Deployment: rejected Pods do not
// exist.
func (p *plugin) checkControllers(ctx context.Context, client kubernetes.Interface, status Status) (Check, error) {
	const name = "controllers"
	list, err := client.AppsV1().Deployments(p.carve).List(ctx, metav1.ListOptions{LabelSelector: labelName + "=" + nameController})
	if err != nil {
		return Check{}, fmt.Errorf("list Carve's Deployments: %w", err)
	}
	wanted := 0
	for _, d := range list.Items {
		wanted += int(ptr.Deref(d.Spec.Replicas, 1))
	}
	describe := "kubectl -n " + p.carve + " describe "
	switch {
	case len(list.Items) == 0 && status.Controllers == 0:
		return wrong(name, "there is no Deployment "+nameController, nextWithout), nil
	case status.Controllers < wanted || status.Controllers == 0:
		return wrong(name, fmt.Sprintf("%d of %d Pods exist", status.Controllers, wanted), describe+"deployments,replicasets -l "+labelName+"="+nameController), nil
	case status.ControllersReady == 0 || status.ControllersReady < status.Controllers:
		return wrong(name, fmt.Sprintf("%d of %d are ready", status.ControllersReady, status.Controllers), describe+"pods -l "+labelName+"="+nameController), nil
	}
	return passed(name), nil
}

// checkAgents compares the agents' Pods with their DaemonSets, one per pool of nodes. The Pods
// alone do not show which nodes lack theirs.
func (p *plugin) checkAgents(ctx context.Context, client kubernetes.Interface) ([]Check, error) {
	list, err := client.AppsV1().DaemonSets(p.carve).List(ctx, metav1.ListOptions{LabelSelector: labelName + "=" + nameAgent})
	if err != nil {
		return nil, fmt.Errorf("list Carve's DaemonSets: %w", err)
	}
	if len(list.Items) == 0 {
		return []Check{wrong("agents", "there is no DaemonSet "+nameAgent, nextWithout)}, nil
	}
	var checks []Check
	wanted := int32(0)
	for _, d := range list.Items {
		wanted += d.Status.DesiredNumberScheduled
		problem, next := "", "kubectl -n "+p.carve+" describe daemonset "+d.Name
		switch s := d.Status; {
		case s.ObservedGeneration < d.Generation:
			problem = "the controller manager has not looked at its last change"
		case s.CurrentNumberScheduled < s.DesiredNumberScheduled:
			problem = fmt.Sprintf("%d of %d nodes have their Pod", s.CurrentNumberScheduled, s.DesiredNumberScheduled)
		case s.NumberReady < s.DesiredNumberScheduled:
			problem = fmt.Sprintf("%d of %d Pods are ready", s.NumberReady, s.DesiredNumberScheduled)
		}
		checks = append(checks, checked("agents of "+d.Name, problem, next))
	}
	if wanted == 0 {
		return append(checks, note("agents", "no node is to have one",
			"compare the nodes' labels with what the DaemonSets select: kubectl -n "+p.carve+" describe daemonsets -l "+labelName+"="+nameAgent)), nil
	}
	return checks, nil
}

// nodeOf returns the current or intended node of an agent's Pod. Its DaemonSet selects the node by
// name.
func nodeOf(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if pod.Spec.NodeName != "" || affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return pod.Spec.NodeName
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
