package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// Status summarises Carve in a few numbers.
type Status struct {
	// Images are those of Carve's Pods: several during a rollout.
	Images           []string `json:"images"`
	ControllersReady int      `json:"controllersReady"`
	Controllers      int      `json:"controllers"`
	AgentsReady      int      `json:"agentsReady"`
	Agents           int      `json:"agents"`
	Nodes            int      `json:"nodes"`
	// NodesWithCapacity counts the nodes that have free space for a volume of some StorageClass.
	NodesWithCapacity int   `json:"nodesWithCapacity"`
	Volumes           int   `json:"volumes"`
	VolumeBytes       int64 `json:"volumeBytes"`
}

func (p *plugin) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say in a few numbers how Carve is", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, _ run) error {
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				status := s.status()
				return p.print(cmd.OutOrStdout(), status, [][]string{
					{"images", strings.Join(status.Images, ", ")},
					{"controllers", fmt.Sprintf("%d of %d ready", status.ControllersReady, status.Controllers)},
					{"node agents", fmt.Sprintf("%d of %d ready, on %d nodes", status.AgentsReady, status.Agents, status.Nodes)},
					{"nodes that offer space", strconv.Itoa(status.NodesWithCapacity)},
					{"volumes", fmt.Sprintf("%d, %s", status.Volumes, size(status.VolumeBytes))},
				})
			})
		},
	}
}

func (s *snapshot) status() Status {
	status := Status{Controllers: len(s.control), Agents: len(s.agents), Nodes: len(s.nodes), Volumes: len(s.volumes)}
	images := map[string]bool{}
	for _, pod := range append(slices.Clone(s.control), slices.Collect(maps.Values(s.agents))...) {
		for _, container := range pod.Spec.Containers {
			images[container.Image] = true
		}
		switch {
		case !isReady(&pod):
		case pod.Labels[labelName] == nameController:
			status.ControllersReady++
		default:
			status.AgentsReady++
		}
	}
	status.Images = slices.Sorted(maps.Keys(images))
	for _, node := range s.whyNodes() {
		if len(node.Largest) > 0 {
			status.NodesWithCapacity++
		}
	}
	for _, pv := range s.volumes {
		capacity := pv.Spec.Capacity[corev1.ResourceStorage]
		status.VolumeBytes += capacity.Value()
	}
	return status
}

func (p *plugin) capacityCommand() *cobra.Command {
	return &cobra.Command{
		Use: "capacity", Short: "Show what each node has of each StorageClass: used, reserved, available", Args: cobra.NoArgs,
		Long: "Shows what each node has of each StorageClass. Reserved is what claims asked for that the scheduler gave to the node and whose volumes " +
			"are being made: it counts as neither used nor available. Classes that share a volume group share what is available.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, _ run) error {
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				capacities := s.capacity()
				rows := [][]string{{"NODE", "STORAGECLASS", "USED", "RESERVED", "AVAILABLE", "LARGEST VOLUME", "USE"}}
				for _, c := range capacities {
					rows = append(rows, []string{c.Node, c.StorageClass, size(c.UsedBytes), size(c.ReservedBytes), size(c.AvailableBytes), size(c.LargestBytes), bar(c.UsedBytes+c.ReservedBytes, c.AvailableBytes)})
				}
				return p.print(cmd.OutOrStdout(), orEmpty(capacities), rows)
			})
		},
	}
}

func bar(used, available int64) string {
	const width = 20
	if used+available <= 0 {
		return ""
	}
	full := int(float64(used) / float64(used+available) * width)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

func size(bytes int64) string {
	if bytes >= 1<<30 {
		return strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 1, 64) + "Gi"
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

// Volume is a PersistentVolume of Carve.
type Volume struct {
	Name         string `json:"name"`
	ID           string `json:"id"`
	Node         string `json:"node"`
	StorageClass string `json:"storageClass"`
	Bytes        int64  `json:"bytes"`
	// Claim is NAMESPACE/NAME, or empty if the volume is available.
	Claim string `json:"claim,omitempty"`
	Phase string `json:"phase"`
	// Message is the message of the PersistentVolume's status.
	Message string `json:"message,omitempty"`
}

func (p *plugin) volumesCommand() *cobra.Command {
	var node string
	command := &cobra.Command{
		Use: "volumes", Short: "List the PersistentVolumes of Carve, with their nodes and claims", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, _ run) error {
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				rows := [][]string{{"NAME", "ID", "NODE", "STORAGECLASS", "SIZE", "CLAIM", "PHASE", "MESSAGE"}}
				volumes := []Volume{}
				for _, pv := range s.volumes {
					capacity := pv.Spec.Capacity[corev1.ResourceStorage]
					v := Volume{
						Name: pv.Name, ID: pv.Spec.CSI.VolumeHandle, Node: why.Home(&pv), StorageClass: pv.Spec.StorageClassName,
						Bytes: capacity.Value(), Phase: string(pv.Status.Phase), Message: pv.Status.Message,
					}
					if ref := pv.Spec.ClaimRef; ref != nil {
						v.Claim = ref.Namespace + "/" + ref.Name
					}
					if node == "" || v.Node == node {
						volumes = append(volumes, v)
						rows = append(rows, []string{v.Name, v.ID, v.Node, v.StorageClass, size(v.Bytes), v.Claim, v.Phase, v.Message})
					}
				}
				return p.print(cmd.OutOrStdout(), volumes, rows)
			})
		},
	}
	command.Flags().StringVar(&node, "node", "", "those of this node only")
	return command
}

func (p *plugin) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why POD", Short: "Say why a Pod does not run, and what to do next", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, _ run) error {
				facts, err := p.facts(ctx, client, args[0])
				if err != nil {
					return err
				}
				reasons := why.Explain(*facts)
				rows := [][]string{{"The Pod runs."}}
				if len(reasons) > 0 {
					rows = nil
				}
				for _, r := range reasons {
					rows = append(rows, []string{r.Subject + ": " + r.Problem})
					if r.Next != "" {
						rows = append(rows, []string{"  next: " + r.Next})
					}
				}
				return p.print(cmd.OutOrStdout(), orEmpty(reasons), rows)
			})
		},
	}
}

// orEmpty makes an empty list print as [], not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// events returns an object's latest Events, newest first.
func events(ctx context.Context, client kubernetes.Interface, namespace, kind, name string) ([]why.Event, error) {
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of %s %s: %w", kind, name, err)
	}
	newestFirst(list.Items)
	var result []why.Event
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name {
			result = append(result, why.Event{Reason: e.Reason, Message: e.Message})
		}
	}
	return result, nil
}

func newestFirst(list []corev1.Event) {
	slices.SortStableFunc(list, func(a, b corev1.Event) int { return eventTime(b).Compare(eventTime(a).Time) })
}

func eventTime(e corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.Time{Time: e.Series.LastObservedTime.Time}
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.Time{Time: e.EventTime.Time}
	}
	return e.CreationTimestamp
}
