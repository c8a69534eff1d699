package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/adoption"
	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// Errors of adopt.
var (
	ErrInUse        = errors.New("stop its Pods first")
	ErrNotAdopting  = errors.New("no adoption of it is under way")
	ErrAlreadyOurs  = errors.New("its volume is Carve's already")
	ErrIDTaken      = errors.New("find out what runs as carve-lvmd")
	ErrStorageClass = errors.New("--storage-class must name a StorageClass of Carve")
)

// bindTimeout is how long the claim may take to bind to its new PersistentVolume.
const bindTimeout = 30 * time.Second

// Adoption is a planned or executed adoption.
type Adoption struct {
	Claim            string          `json:"claim"`
	PersistentVolume string          `json:"persistentVolume"`
	Source           adoption.Source `json:"source"`
	Node             string          `json:"node"`
	// StorageClass is the one of Carve that names the device class.
	StorageClass string `json:"storageClass,omitempty"`
	DeviceClass  string `json:"deviceClass,omitempty"`
	// ID is the volume's id, empty before its adoption.
	ID     string `json:"id,omitempty"`
	FSType string `json:"fsType,omitempty"`
	Bytes  int64  `json:"bytes"`
	// State is planned, adopted, confirmed or reverted.
	State string `json:"state"`
}

func (p *plugin) adoptCommand() *cobra.Command {
	var class string
	var yes, confirm, revert bool
	command := &cobra.Command{
		Use: "adopt CLAIM", Short: "Take over a claim's volume from TopoLVM or OpenEBS LVM, in place", Args: cobra.ExactArgs(1),
		Long: "Makes the logical volume of a claim of TopoLVM or OpenEBS LVM a volume of Carve, with what it holds: it is renamed and tagged, and the " +
			"PersistentVolume is replaced by one of Carve. The claim stays. Its Pods must be stopped.\n\n" +
			"Without --yes, it only says what it would do. After --yes the volume is kept whatever happens to the claim, and --revert takes everything " +
			"back, until --confirm. What was interrupted is continued by the same command.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				a := &adopter{plugin: p, client: client, run: run, class: class}
				err := a.read(ctx, args[0])
				step := a.plan
				switch {
				case confirm && errors.Is(err, ErrAlreadyOurs):
					step = a.confirmAgain
				case err != nil:
					return fmt.Errorf("claim %s/%s: %w", p.namespace, args[0], err)
				case revert:
					step = a.revert
				case confirm:
					step = a.confirm
				case yes:
					step = a.adopt
				}
				result, err := step(ctx)
				if err != nil {
					return fmt.Errorf("claim %s/%s: %w", p.namespace, args[0], err)
				}
				return p.printAdoption(cmd.OutOrStdout(), result)
			})
		},
	}
	command.Flags().StringVar(&class, "storage-class", "", "StorageClass of Carve whose device class has the volume's volume group; empty: the only one")
	command.Flags().BoolVar(&yes, "yes", false, "do it; without, only say what would be done")
	command.Flags().BoolVar(&confirm, "confirm", false, "confirm an adoption: it cannot be reverted any more")
	command.Flags().BoolVar(&revert, "revert", false, "revert an adoption that is not confirmed")
	command.MarkFlagsMutuallyExclusive("yes", "confirm", "revert")
	return command
}

func (p *plugin) printAdoption(w io.Writer, a *Adoption) error {
	rows := [][]string{{"claim:", a.Claim}}
	if a.Source.Driver != "" {
		rows = append(rows, []string{"from:", fmt.Sprintf("%s, logical volume %s on %s", a.Source.Driver, a.Source.LogicalVolume, a.Node)})
	}
	rows = append(rows, []string{"state:", a.State})
	if a.StorageClass != "" {
		rows = append(rows, []string{"to:", fmt.Sprintf("device class %s, of StorageClass %s", cmp.Or(a.DeviceClass, "by default"), a.StorageClass)})
	}
	next := map[string]string{
		"planned":   "--yes does it",
		"adopted":   "start the Pods and look; then --confirm, or stop them and --revert",
		"confirmed": fmt.Sprintf("remove what is left of it in %s", a.Source.Driver),
	}
	if a.ID != "" {
		rows = append(rows, []string{"volume:", a.ID})
	}
	if next[a.State] != "" && a.Source.Driver != "" {
		rows = append(rows, []string{"next:", next[a.State]})
	}
	return p.print(w, a, rows)
}

// adopter carries out the steps for one claim. Each step checks the current state, so that an
// interrupted adoption can be continued.
type adopter struct {
	*plugin
	client kubernetes.Interface
	run    run
	class  string

	claim *corev1.PersistentVolumeClaim
	// pv is the claim's current PersistentVolume, nil between the removal of one and the creation
	// of the other.
	pv *corev1.PersistentVolume
	// original is the other driver's PersistentVolume; started means that it was saved in the
	// claim.
	original *corev1.PersistentVolume
	started  bool
	source   adoption.Source
	snapshot *snapshot
}

func (a *adopter) read(ctx context.Context, name string) (err error) {
	if a.claim, err = a.client.CoreV1().PersistentVolumeClaims(a.namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	}
	if a.claim.Spec.VolumeName == "" {
		return errors.New("it has no volume")
	}
	if a.pv, err = orNil(a.client.CoreV1().PersistentVolumes().Get(ctx, a.claim.Spec.VolumeName, metav1.GetOptions{})); err != nil {
		return err
	}
	if a.pv != nil && (a.pv.Spec.ClaimRef == nil || a.pv.Spec.ClaimRef.UID != a.claim.UID) {
		return fmt.Errorf("PersistentVolume %s is not bound to it", a.pv.Name)
	}
	text, started := a.claim.Annotations[adoption.Annotation]
	a.started = started
	switch {
	case started:
		if a.original, err = adoption.Load(text); err != nil {
			return err
		}
	case a.pv == nil:
		return fmt.Errorf("its PersistentVolume %s is gone", a.claim.Spec.VolumeName)
	case isOurs(a.pv):
		return ErrAlreadyOurs
	default:
		a.original = a.pv
	}
	if a.source, err = adoption.SourceOf(a.original); err != nil {
		return err
	}
	a.snapshot, err = a.plugin.read(ctx, a.client)
	return err
}

func isOurs(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver
}

func (a *adopter) plan(ctx context.Context) (*Adoption, error) {
	result, err := a.prepare(ctx)
	if err != nil || a.started {
		return result, err
	}
	vol, err := a.lvmdAdopt(ctx, result, "--dry-run")
	if err != nil {
		return nil, err
	}
	result.note(vol)
	return result, nil
}

func (a *adopter) adopt(ctx context.Context) (*Adoption, error) {
	result, err := a.plan(ctx)
	if err != nil {
		return nil, err
	}
	if !a.started {
		if err := a.save(ctx); err != nil {
			return nil, err
		}
	}
	if a.pv != nil && !isOurs(a.pv) && a.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		// The driver must not delete the volume, whatever happens to the object.
		if err := a.setReclaimPolicy(ctx, corev1.PersistentVolumeReclaimRetain); err != nil {
			return nil, err
		}
	}
	vol, err := a.lvmdAdopt(ctx, result)
	if err != nil {
		return nil, err
	}
	if err := a.checkID(ctx, result.Node, vol.GetId()); err != nil {
		return nil, err
	}
	if a.pv == nil || !isOurs(a.pv) || a.pv.Spec.CSI.VolumeHandle != vol.GetId() {
		if err := a.replace(ctx, adoption.PersistentVolume(a.original, vol, result.Node)); err != nil {
			return nil, err
		}
	}
	result.note(vol)
	result.State = "adopted"
	return result, nil
}

// checkID rejects an id that another volume has: otherwise the controller would send that volume's
// snapshots, clones and expansions to this node.
func (a *adopter) checkID(ctx context.Context, node, id string) error {
	holder := "is none"
	if id != "" {
		volumes, err := a.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the PersistentVolumes: %w", err)
		}
		i := slices.IndexFunc(volumes.Items, func(pv corev1.PersistentVolume) bool {
			return isOurs(&pv) && pv.Spec.CSI.VolumeHandle == id && pv.Name != a.original.Name
		})
		if i < 0 {
			return nil
		}
		holder = fmt.Sprintf("PersistentVolume %s has", volumes.Items[i].Name)
	}
	return fmt.Errorf("node %s answered with volume id %q, which %s: %w on node %s, then --revert", node, id, holder, ErrIDTaken, node)
}

// confirm ends an adoption and restores the original reclaim policy.
func (a *adopter) confirm(ctx context.Context) (*Adoption, error) {
	if !a.started || a.pv == nil || !isOurs(a.pv) {
		return nil, ErrNotAdopting
	}
	result, err := a.describe()
	if err != nil {
		return nil, err
	}
	result.ID, result.State = a.pv.Spec.CSI.VolumeHandle, "confirmed"
	if _, err := a.lvmd(ctx, result.Node, "confirm-adoption", result.ID); err != nil {
		return nil, err
	}
	if policy := a.original.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
		if err := a.setReclaimPolicy(ctx, policy, provisionerFinalizer); err != nil {
			return nil, err
		}
	}
	return result, a.handOver(ctx)
}

// confirmAgain hands over a claim whose adoption was confirmed by a version without handOver.
func (a *adopter) confirmAgain(ctx context.Context) (*Adoption, error) {
	if len(adoption.Provisioner(a.claim.Annotations)) == 0 {
		return nil, ErrAlreadyOurs
	}
	result := &Adoption{
		Claim: a.claim.Namespace + "/" + a.claim.Name, PersistentVolume: a.pv.Name, Node: why.Home(a.pv), ID: a.pv.Spec.CSI.VolumeHandle,
		State: "confirmed",
	}
	return result, a.handOver(ctx)
}

// handOver ends the adoption and the former driver's role for the claim in one write: after a
// crash, either the adoption can still be reverted, or the claim is Carve's.
func (a *adopter) handOver(ctx context.Context) error {
	return a.patchClaim(ctx, func() map[string]any {
		annotations := adoption.Provisioner(a.claim.Annotations)
		annotations[adoption.Annotation] = nil
		return map[string]any{"annotations": annotations, "finalizers": adoption.WithoutDriver(a.claim.Finalizers)}
	})
}

// revert restores the claim's former PersistentVolume and the logical volume's former name.
func (a *adopter) revert(ctx context.Context) (*Adoption, error) {
	if !a.started {
		return nil, ErrNotAdopting
	}
	result, err := a.describe()
	if err != nil {
		return nil, err
	}
	if err := a.checkUnused(ctx); err != nil {
		return nil, err
	}
	vol, err := a.adopted(ctx, result)
	if err != nil {
		return nil, err
	}
	if vol != nil {
		if _, err := a.lvmd(ctx, result.Node, "revert-adoption", vol.GetId()); err != nil {
			return nil, err
		}
	}
	if a.pv == nil || isOurs(a.pv) {
		if err := a.replace(ctx, a.original); err != nil {
			return nil, err
		}
	} else if err := a.setReclaimPolicy(ctx, a.original.Spec.PersistentVolumeReclaimPolicy); err != nil {
		return nil, err
	}
	result.State = "reverted"
	return result, a.refresh(ctx)
}

// refresh rereads the claim, which Kubernetes changed when it bound it, and ends the adoption.
func (a *adopter) refresh(ctx context.Context) (err error) {
	a.claim, err = a.client.CoreV1().PersistentVolumeClaims(a.claim.Namespace).Get(ctx, a.claim.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the claim: %w", err)
	}
	return a.patchClaim(ctx, func() map[string]any {
		return map[string]any{"annotations": map[string]any{adoption.Annotation: nil}}
	})
}

// prepare describes the adoption of a claim, which no Pod may use.
func (a *adopter) prepare(ctx context.Context) (*Adoption, error) {
	result, err := a.describe()
	if err != nil {
		return nil, err
	}
	class, err := a.snapshot.chooseClass(a.class)
	if err != nil {
		return nil, err
	}
	result.StorageClass, result.DeviceClass = class.Name, class.Parameters[names.ParamDeviceClass]
	return result, a.checkUnused(ctx)
}

func (a *adopter) describe() (*Adoption, error) {
	result := &Adoption{
		Claim: a.claim.Namespace + "/" + a.claim.Name, PersistentVolume: a.original.Name, Source: a.source, State: "planned",
	}
	size := a.original.Spec.Capacity[corev1.ResourceStorage]
	result.Bytes = size.Value()
	where := labels.SelectorFromSet(labels.Set{a.source.TopologyKey: a.source.TopologyValue})
	i := slices.IndexFunc(a.snapshot.nodes, func(n corev1.Node) bool { return where.Matches(labels.Set(n.Labels)) })
	if i < 0 {
		return nil, fmt.Errorf("no node has the label %s", where)
	}
	result.Node = a.snapshot.nodes[i].Name
	if agent, ok := a.snapshot.agents[result.Node]; !ok || !isReady(&agent) {
		return nil, fmt.Errorf("the agent of %s is not ready", result.Node)
	}
	return result, nil
}

// chooseClass returns the named StorageClass of Carve, or the only one.
func (s *snapshot) chooseClass(name string) (storagev1.StorageClass, error) {
	class, ok := s.classes[name]
	if !ok && name == "" && len(s.classes) == 1 {
		for _, class = range s.classes {
			ok = true
		}
	}
	if !ok {
		return storagev1.StorageClass{}, ErrStorageClass
	}
	return class, nil
}

func (r *Adoption) note(vol *lvmdv1.Volume) {
	r.ID, r.FSType, r.Bytes, r.DeviceClass = vol.GetId(), vol.GetFsType(), vol.GetSizeBytes(), vol.GetDeviceClass()
	r.Source.VolumeGroup = vol.GetVgName()
}

// checkUnused rejects a claim that a Pod uses. The node itself rejects mounted volumes.
func (a *adopter) checkUnused(ctx context.Context) error {
	pods, err := a.client.CoreV1().Pods(a.claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the Pods: %w", err)
	}
	var users []string
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == a.claim.Name ||
				v.Ephemeral != nil && pod.Name+"-"+v.Name == a.claim.Name {
				users = append(users, pod.Name)
			}
		}
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: %s", ErrInUse, strings.Join(users, ", "))
	}
	return nil
}

// save stores the PersistentVolume in the claim, so that the adoption can be reverted.
func (a *adopter) save(ctx context.Context) error {
	text, err := adoption.Save(a.pv)
	if err != nil {
		return err
	}
	return a.patchClaim(ctx, func() map[string]any {
		return map[string]any{"annotations": map[string]any{adoption.Annotation: text}}
	})
}

// patchClaim changes the claim's metadata. Kubernetes changes a claim that it has just bound: after
// a conflict, patchClaim rereads the claim and calls metadata again.
func (a *adopter) patchClaim(ctx context.Context, metadata func() map[string]any) error {
	claims := a.client.CoreV1().PersistentVolumeClaims(a.claim.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		changed := metadata()
		changed["uid"], changed["resourceVersion"] = a.claim.UID, a.claim.ResourceVersion
		err := patched("the claim", map[string]any{"metadata": changed}, func(body []byte) error {
			_, err := claims.Patch(ctx, a.claim.Name, types.MergePatchType, body, metav1.PatchOptions{})
			return err
		})
		if !apierrors.IsConflict(err) {
			return err
		}
		claim, errRead := claims.Get(ctx, a.claim.Name, metav1.GetOptions{})
		if errRead != nil || claim.UID != a.claim.UID {
			return errors.Join(errRead, err)
		}
		a.claim = claim
		return err
	})
}

// setReclaimPolicy changes the claim's PersistentVolume and adds finalizers. Kubernetes writes the
// status of one that it has just bound: after a conflict, setReclaimPolicy rereads it.
func (a *adopter) setReclaimPolicy(ctx context.Context, policy corev1.PersistentVolumeReclaimPolicy, finalizers ...string) error {
	volumes := a.client.CoreV1().PersistentVolumes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		metadata := map[string]any{"uid": a.pv.UID, "resourceVersion": a.pv.ResourceVersion}
		if len(finalizers) > 0 {
			metadata["finalizers"] = append(slices.Clone(a.pv.Finalizers), finalizers...)
		}
		patch := map[string]any{"metadata": metadata, "spec": map[string]any{"persistentVolumeReclaimPolicy": policy}}
		err := patched("PersistentVolume "+a.pv.Name, patch, func(body []byte) error {
			_, err := volumes.Patch(ctx, a.pv.Name, types.MergePatchType, body, metav1.PatchOptions{})
			return err
		})
		if !apierrors.IsConflict(err) {
			return err
		}
		pv, errRead := volumes.Get(ctx, a.pv.Name, metav1.GetOptions{})
		if errRead != nil || pv.UID != a.pv.UID {
			return errors.Join(errRead, err)
		}
		a.pv = pv
		return err
	})
}

func (a *adopter) replace(ctx context.Context, by *corev1.PersistentVolume) error {
	volumes := a.client.CoreV1().PersistentVolumes()
	if a.pv != nil {
		if err := a.remove(ctx); err != nil {
			return err
		}
	}
	if _, err := volumes.Create(ctx, by, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make PersistentVolume %s: %w; the same command tries again", by.Name, err)
	}
	err := wait.PollUntilContextTimeout(ctx, time.Second, bindTimeout, true, func(ctx context.Context) (bool, error) {
		claim, err := a.client.CoreV1().PersistentVolumeClaims(a.claim.Namespace).Get(ctx, a.claim.Name, metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the claim is bound to PersistentVolume %s: %w", by.Name, err)
	}
	return nil
}

// remove deletes the claim's PersistentVolume and its finalizers, which wait for the claim or for a
// driver. Its policy is Retain, so no driver deletes the volume.
func (a *adopter) remove(ctx context.Context) error {
	volumes := a.client.CoreV1().PersistentVolumes()
	err := volumes.Delete(ctx, a.pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.pv.UID}})
	if err == nil {
		patch := map[string]any{"metadata": map[string]any{"uid": a.pv.UID, "finalizers": nil}}
		err = patched("PersistentVolume "+a.pv.Name, patch, func(body []byte) error {
			_, err := volumes.Patch(ctx, a.pv.Name, types.MergePatchType, body, metav1.PatchOptions{})
			return err
		})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PersistentVolume %s: %w", a.pv.Name, err)
	}
	return nil
}

func patched(what string, patch any, send func([]byte) error) error {
	body, err := json.Marshal(patch)
	if err == nil {
		err = send(body)
	}
	if err != nil {
		return fmt.Errorf("change %s: %w", what, err)
	}
	return nil
}

// provisionerFinalizer keeps a PersistentVolume until its volume is deleted.
const provisionerFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// volumeName returns the name that the controller would have given the volume.
func (a *adopter) volumeName() string { return "pvc-" + string(a.claim.UID) }

// lvmdAdopt makes the node adopt the logical volume; it succeeds if the node already has.
func (a *adopter) lvmdAdopt(ctx context.Context, plan *Adoption, flags ...string) (*lvmdv1.Volume, error) {
	system, err := a.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the cluster's id: %w", err)
	}
	argv := []string{
		"adopt", "--json", "--class=" + plan.DeviceClass, "--group=" + a.source.VolumeGroup, "--cluster=" + string(system.UID),
		"--claim-namespace=" + a.claim.Namespace, "--claim=" + a.claim.Name, "--claim-uid=" + string(a.claim.UID),
	}
	if a.source.Block {
		argv = append(argv, "--block")
	}
	output, err := a.lvmd(ctx, plan.Node, append(append(argv, flags...), a.source.LogicalVolume, a.volumeName())...)
	if err != nil {
		return nil, err
	}
	vol := &lvmdv1.Volume{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(output), vol); err != nil {
		return nil, fmt.Errorf("read what the agent of %s adopted: %w", plan.Node, err)
	}
	return vol, nil
}

func (a *adopter) adopted(ctx context.Context, plan *Adoption) (*lvmdv1.Volume, error) {
	output, err := a.lvmd(ctx, plan.Node, "volumes", "--json")
	if err != nil {
		return nil, err
	}
	volumes, err := parseVolumes(output)
	if err != nil {
		return nil, fmt.Errorf("read what the agent of %s holds: %w", plan.Node, err)
	}
	for _, vol := range volumes {
		if vol.GetName() == a.volumeName() {
			return vol, nil
		}
	}
	return nil, nil
}

func (a *adopter) lvmd(ctx context.Context, node string, argv ...string) (string, error) {
	agent := a.snapshot.agents[node]
	return a.run(ctx, agent.Name, "lvmd", append([]string{"carve-lvmd"}, argv...)...)
}
