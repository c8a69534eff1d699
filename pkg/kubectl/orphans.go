package kubectl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"google.golang.org/protobuf/encoding/protojson"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Orphan is a volume on a node that no PersistentVolume and no claim refers to.
type Orphan struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	Node  string    `json:"node"`
	Class string    `json:"deviceClass"`
	Bytes int64     `json:"bytes"`
	Made  time.Time `json:"made"`
	// Claim is the NAMESPACE/NAME that it was created for; empty if it was created by hand.
	Claim string `json:"claim,omitempty"`
	// Foreign means that this cluster did not create it.
	Foreign bool `json:"foreign"`
	// FSType is empty for raw volumes.
	FSType string `json:"fsType,omitempty"`

	volume *lvmdv1.Volume
}

// Orphans lists the orphans, and the nodes that could not be asked.
type Orphans struct {
	Orphans []Orphan `json:"orphans"`
	// Unreachable holds the reasons, by node, why agents did not answer.
	Unreachable map[string]string `json:"unreachable,omitempty"`
}

// youngest is the minimum age of an orphan: a younger volume may be about to get its
// PersistentVolume.
const youngest = 10 * time.Minute

func (p *plugin) orphansCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "orphans", Short: "List volumes on the nodes that nothing in the API knows", Args: cobra.NoArgs,
		Long: "Lists volumes that no PersistentVolume and no claim knows and that are older than ten minutes: of deleted claims whose policy is " +
			"Retain, made by hand, or left. It runs carve-lvmd in the node agents, and needs the right to.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				found, err := p.orphans(ctx, client, run)
				if err != nil {
					return err
				}
				rows := [][]string{{"ID", "NODE", "CLASS", "SIZE", "AGE", "MADE FOR", ""}}
				for _, o := range found.Orphans {
					note := ""
					if o.Foreign {
						note = "not of this cluster"
					}
					rows = append(rows, []string{o.ID, o.Node, o.Class, size(o.Bytes), p.now().Sub(o.Made).Round(time.Minute).String(), o.Claim, note})
				}
				for _, node := range slices.Sorted(maps.Keys(found.Unreachable)) {
					rows = append(rows, []string{"?", node, found.Unreachable[node]})
				}
				if err := p.print(cmd.OutOrStdout(), found, rows); err != nil {
					return err
				}
				if len(found.Unreachable) > 0 {
					return fmt.Errorf("%w: %s", ErrUnreachable, strings.Join(slices.Sorted(maps.Keys(found.Unreachable)), ", "))
				}
				return nil
			})
		},
	}
	command.AddCommand(p.removeCommand(), p.claimCommand())
	return command
}

// orphans asks every agent for its volumes, and leaves out those that the API refers to.
func (p *plugin) orphans(ctx context.Context, client kubernetes.Interface, run run) (*Orphans, error) {
	s, err := p.read(ctx, client)
	if err != nil {
		return nil, err
	}
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the cluster's id: %w", err)
	}
	claims, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	known := map[string]bool{}
	for _, claim := range claims.Items {
		known["pvc-"+string(claim.UID)], known[claim.Spec.VolumeName] = true, true // the volume that a claim names may come from another claim
	}
	for _, pv := range s.volumes {
		known[pv.Spec.CSI.VolumeHandle] = true
	}
	result := &Orphans{Orphans: []Orphan{}, Unreachable: map[string]string{}}
	for _, a := range ask(ctx, s, func(ctx context.Context, _, pod string) ([]*lvmdv1.Volume, error) {
		output, err := run(ctx, pod, "lvmd", "carve-lvmd", "volumes", "--json")
		if err != nil {
			return nil, err
		}
		return parseVolumes(output)
	}) {
		if a.err != nil {
			result.Unreachable[a.node] = a.err.Error()
		}
		for _, v := range a.value {
			if known[v.GetId()] || known[v.GetName()] || v.GetOwner().GetPodUid() != "" ||
				v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || p.now().Sub(v.GetCreatedAt().AsTime()) < youngest {
				continue
			}
			o := Orphan{
				ID: v.GetId(), Name: v.GetName(), Node: a.node, Class: v.GetDeviceClass(), Bytes: v.GetSizeBytes(), Made: v.GetCreatedAt().AsTime(),
				Foreign: v.GetOwner().GetClusterId() != string(system.UID), FSType: v.GetFsType(), volume: v,
			}
			if claim := v.GetOwner().GetClaimName(); claim != "" {
				o.Claim = v.GetOwner().GetClaimNamespace() + "/" + claim
			}
			result.Orphans = append(result.Orphans, o)
		}
	}
	return result, nil
}

func parseVolumes(output string) ([]*lvmdv1.Volume, error) {
	var volumes []*lvmdv1.Volume
	for line := range strings.Lines(output) {
		v := &lvmdv1.Volume{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), v); err != nil {
			return nil, fmt.Errorf("parse %.80q: %w", line, err)
		}
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// ErrNotAnOrphan means that the id is not in the list of orphans.
var ErrNotAnOrphan = errors.New("it is not in the list of orphans")

// ErrUnreachable means that the list lacks the volumes of some nodes.
var ErrUnreachable = errors.New("not all nodes could be asked")

// ErrForeign means that another cluster may use the orphan.
var ErrForeign = errors.New("this cluster did not make it, and another one may use it: it is removed or adopted only with --foreign")

// Removal is an orphan, and whether it was removed.
type Removal struct {
	Orphan  Orphan `json:"orphan"`
	Removed bool   `json:"removed"`
}

// orphan returns the orphan with an id. It returns ErrNotAnOrphan if none has it, ErrUnreachable if
// a node that did not answer may have it, and ErrForeign if another cluster may use it and foreign
// is false.
func (p *plugin) orphan(ctx context.Context, client kubernetes.Interface, run run, id string, foreign bool) (Orphan, error) {
	found, err := p.orphans(ctx, client, run)
	if err != nil {
		return Orphan{}, err
	}
	i := slices.IndexFunc(found.Orphans, func(o Orphan) bool { return o.ID == id })
	switch {
	case i < 0 && len(found.Unreachable) > 0:
		var missing []string
		for _, node := range slices.Sorted(maps.Keys(found.Unreachable)) {
			missing = append(missing, fmt.Sprintf("%s (%s)", node, found.Unreachable[node]))
		}
		return Orphan{}, fmt.Errorf("%s: none of the nodes that answered has an orphan of this id, and %w: %s", id, ErrUnreachable, strings.Join(missing, ", "))
	case i < 0:
		return Orphan{}, fmt.Errorf("%s: %w", id, ErrNotAnOrphan)
	case found.Orphans[i].Foreign && !foreign:
		return Orphan{}, fmt.Errorf("%s: %w", id, ErrForeign)
	}
	return found.Orphans[i], nil
}

func (p *plugin) removeCommand() *cobra.Command {
	var yes, foreign bool
	command := &cobra.Command{
		Use: "remove ID", Short: "Remove an orphan, with all it holds, from its node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				o, err := p.orphan(ctx, client, run, args[0], foreign)
				if err != nil {
					return err
				}
				if !yes {
					return p.print(cmd.OutOrStdout(), Removal{Orphan: o}, [][]string{{fmt.Sprintf("would remove %s (%s) from %s; --yes does", o.ID, size(o.Bytes), o.Node)}})
				}
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				if _, err := run(ctx, s.agents[o.Node].Name, "lvmd", "carve-lvmd", "delete", o.ID); err != nil {
					return err
				}
				return p.print(cmd.OutOrStdout(), Removal{Orphan: o, Removed: true}, [][]string{{fmt.Sprintf("removed %s from %s", o.ID, o.Node)}})
			})
		},
	}
	command.Flags().BoolVar(&yes, "yes", false, "remove it; without, only say what would be removed")
	command.Flags().BoolVar(&foreign, "foreign", false, "remove it even if this cluster did not make it")
	return command
}
