package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// Labels of Carve's Pods.
const (
	labelName      = "app.kubernetes.io/name"
	nameController = "carve-controller"
	nameAgent      = "carve-node"
)

// snapshot is Carve's state in the API server at one time.
type snapshot struct {
	nodes      []corev1.Node
	registered map[string]bool // by node: whether its kubelet knows the driver
	agents     map[string]corev1.Pod
	control    []corev1.Pod
	volumes    []corev1.PersistentVolume         // Carve's
	classes    map[string]storagev1.StorageClass // Carve's, by name
	capacities []storagev1.CSIStorageCapacity
	claims     []corev1.PersistentVolumeClaim // of Carve's classes, without a volume
	bound      []corev1.PersistentVolumeClaim // those that Carve's volumes name

	// Derived from the above once, by node: clusters have thousands of nodes.
	offers   map[string][]Capacity // sorted by class
	heldBack map[string]bool       // whether the controller publishes no capacity because creating volumes fails
	groups   map[string][]string   // the volume groups of Carve's volumes
}

// read needs the rights of the ClusterRole carve-view.
func (p *plugin) read(ctx context.Context, client kubernetes.Interface) (*snapshot, error) {
	s := &snapshot{registered: map[string]bool{}, agents: map[string]corev1.Pod{}, classes: map[string]storagev1.StorageClass{}}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	s.nodes = nodes.Items
	slices.SortFunc(s.nodes, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	drivers, err := client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list what the kubelets know: %w", err)
	}
	for _, node := range drivers.Items {
		s.registered[node.Name] = slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == names.Driver })
	}
	pods, err := client.CoreV1().Pods(p.carve).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Carve's Pods: %w", err)
	}
	for _, pod := range pods.Items {
		switch pod.Labels[labelName] {
		case nameController:
			s.control = append(s.control, pod)
		case nameAgent:
			// A replacement coexists with the old Pod: the ready one counts. Skip a Pod that has no
			// node yet.
			node := nodeOf(&pod)
			if before, ok := s.agents[node]; node != "" && (!ok || !isReady(&before)) {
				s.agents[node] = pod
			}
		}
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes: %w", err)
	}
	for _, pv := range volumes.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver {
			s.volumes = append(s.volumes, pv)
		}
	}
	classes, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the StorageClasses: %w", err)
	}
	for _, class := range classes.Items {
		if class.Provisioner == names.Driver {
			s.classes[class.Name] = class
		}
	}
	claims, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	named := map[types.NamespacedName]bool{}
	for _, pv := range s.volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			named[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] = true
		}
	}
	for _, claim := range claims.Items {
		if named[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] {
			s.bound = append(s.bound, claim)
		}
		if class := claim.Spec.StorageClassName; claim.Spec.VolumeName == "" && class != nil {
			if _, ours := s.classes[*class]; ours {
				s.claims = append(s.claims, claim)
			}
		}
	}
	capacities, err := client.StorageV1().CSIStorageCapacities(p.carve).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the capacities: %w", err)
	}
	for _, c := range capacities.Items {
		if _, ours := s.classes[c.StorageClassName]; ours {
			s.capacities = append(s.capacities, c)
		}
	}
	return s, s.index()
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Capacity is a node's space for a StorageClass.
type Capacity struct {
	Node         string `json:"node"`
	StorageClass string `json:"storageClass"`
	// UsedBytes is the sum of the class's PersistentVolumes on the node.
	UsedBytes int64 `json:"usedBytes"`
	// ReservedBytes is the sum of the requests of claims that have selected the node and have no
	// volume yet.
	ReservedBytes int64 `json:"reservedBytes"`
	// AvailableBytes is the free space minus the reservations for claims whose volumes are being
	// created. LargestBytes is the largest volume that fits.
	AvailableBytes int64 `json:"availableBytes"`
	LargestBytes   int64 `json:"largestBytes"`
}

// index groups the snapshot by node. A capacity of a group of nodes counts for each member. It
// visits every object once, except for such capacities.
func (s *snapshot) index() error {
	offers := map[string]map[string]Capacity{}
	offer := func(node, class string, change func(*Capacity)) {
		if offers[node] == nil {
			offers[node] = map[string]Capacity{}
		}
		one := offers[node][class]
		one.Node, one.StorageClass = node, class
		change(&one)
		offers[node][class] = one
	}
	labelled := map[string][]corev1.Node{}
	for _, node := range s.nodes {
		value := node.Labels[names.TopologyNode]
		labelled[value] = append(labelled[value], node)
	}
	s.offers, s.heldBack, s.groups = map[string][]Capacity{}, map[string]bool{}, map[string][]string{}
	for _, c := range s.capacities {
		selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
		if err != nil {
			return fmt.Errorf("read the capacity %s: %w", c.Name, err)
		}
		nodes := s.nodes
		if value, one := selector.RequiresExactMatch(names.TopologyNode); one {
			nodes = labelled[value]
		}
		for _, node := range nodes {
			if !selector.Matches(labels.Set(node.Labels)) {
				continue
			}
			if c.Annotations[names.AnnotationHeldBack] != "" {
				s.heldBack[node.Name] = true
			}
			if c.Capacity == nil {
				continue
			}
			offer(node.Name, c.StorageClassName, func(o *Capacity) {
				o.AvailableBytes, o.LargestBytes = c.Capacity.Value(), c.Capacity.Value()
				if c.MaximumVolumeSize != nil {
					o.LargestBytes = c.MaximumVolumeSize.Value()
				}
			})
		}
	}
	for _, pv := range s.volumes {
		home := why.Home(&pv)
		size := pv.Spec.Capacity[corev1.ResourceStorage]
		offer(home, pv.Spec.StorageClassName, func(o *Capacity) { o.UsedBytes += size.Value() })
		group, _, _ := strings.Cut(pv.Annotations[names.AnnotationVolumeGroup], "/")
		if !slices.Contains(s.groups[home], group) {
			s.groups[home] = append(s.groups[home], group)
		}
	}
	for _, claim := range s.claims {
		request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		offer(claim.Annotations[volume.AnnSelectedNode], *claim.Spec.StorageClassName, func(o *Capacity) { o.ReservedBytes += request.Value() })
	}
	for node, of := range offers {
		for _, class := range slices.Sorted(maps.Keys(of)) {
			s.offers[node] = append(s.offers[node], of[class])
		}
	}
	return nil
}

func (s *snapshot) capacity() []Capacity {
	var result []Capacity
	for _, node := range s.nodes {
		result = append(result, s.offers[node.Name]...)
	}
	return result
}

func (s *snapshot) whyNodes() []why.Node {
	nodes := make([]why.Node, 0, len(s.nodes))
	for _, node := range s.nodes {
		agent, ok := s.agents[node.Name]
		one := why.Node{
			Name: node.Name, Ready: nodeReady(&node), Unschedulable: node.Spec.Unschedulable,
			AgentReady: ok && isReady(&agent), Registered: s.registered[node.Name], Largest: map[string]int64{},
		}
		for _, c := range s.offers[node.Name] {
			if c.LargestBytes > 0 {
				one.Largest[c.StorageClass] = c.LargestBytes
			}
		}
		nodes = append(nodes, one)
	}
	return nodes
}
