//go:build e2e

package tests

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/carve-csi/carve/e2e/carve"
)

// otherDriver is a driver whose volumes are adopted, and how it describes them.
type otherDriver struct {
	// name is that of its CSIDriver, topology the label that names the node of a volume.
	name, topology string
	// handle is the name of the logical volume of a claim.
	handle     func(claim *corev1.PersistentVolumeClaim) string
	attributes map[string]string
}

// TestKubectlCarveAdoptsAVolumeOfAnotherDriver makes a volume and its objects as OpenEBS and
// TopoLVM do, has `kubectl carve adopt` take it over, runs a Pod with it, and then lists and
// removes it as an orphan: all of it by real execs in the agents.
func TestKubectlCarveAdoptsAVolumeOfAnotherDriver(t *testing.T) {
	t.Run("OpenEBS", func(t *testing.T) {
		adoptFrom(begin(t), otherDriver{
			name: "local.csi.openebs.io", topology: "openebs.io/nodename",
			handle:     func(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) },
			attributes: map[string]string{"openebs.io/volgroup": "carve", "openebs.io/cas-type": "localpv-lvm"},
		})
	})
	t.Run("TopoLVM", func(t *testing.T) {
		// Its volumes are named by the UID of its own object.
		uid := string(uuid.NewUUID())
		adoptFrom(begin(t), otherDriver{
			name: "topolvm.io", topology: "topology.topolvm.io/node",
			handle:     func(*corev1.PersistentVolumeClaim) string { return uid },
			attributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-1-topolvm.io"},
		})
	})
}

func adoptFrom(s *scope, from otherDriver) {
	s.Helper()
	node := s.nodes[0]
	program := s.kubectlCarve()
	plugin := func(arguments ...string) string {
		s.Helper()
		var output bytes.Buffer
		command := exec.CommandContext(s.ctx, program, append(arguments, "--namespace", s.namespace, "--storage-class", "carve")...)
		if arguments[0] == "orphans" {
			command.Args = append([]string{program}, append(arguments, "--namespace", s.namespace)...)
		}
		command.Stdout, command.Stderr = &output, &output
		s.must(s.Cluster.RunProgram(command), fmt.Sprintf("kubectl carve %s: %s", strings.Join(arguments, " "), &output))
		return output.String()
	}

	claim := s.claimOfOther(from, node)
	lv := from.handle(claim)
	s.node(node, "lvcreate", "-L", fmt.Sprintf("%db", 8*extent), "-n", lv, "carve", "-y")
	s.node(node, "mkfs.ext4", "-q", "/dev/carve/"+lv)
	if got := plugin("adopt", "data"); !strings.Contains(got, "planned") {
		s.Errorf("a dry run: %s", got)
	}
	if got := plugin("adopt", "data", "--yes"); !strings.Contains(got, "adopted") {
		s.Errorf("adopt: %s", got)
	}
	s.startWith("user", "data", "echo kept > "+mountPath+"/file && sync && exec sleep 1000000")
	s.running("user")
	if got := s.nodeOf("user"); got != node {
		s.Errorf("its Pod runs on %s, want %s", got, node)
	}
	pv, err := s.CoreV1().PersistentVolumes().Get(s.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	s.must(err, "get the PersistentVolume")
	s.remove("user")
	if got := plugin("adopt", "data", "--revert"); !strings.Contains(got, "reverted") {
		s.Errorf("revert: %s", got)
	}
	if left := s.node(node, "lvs", "--noheadings", "-o", "lv_name,lv_tags", "carve/"+lv); strings.Contains(left, "carve.") {
		s.Errorf("given back as %q", left)
	}
	plugin("adopt", "data", "--yes")
	plugin("adopt", "data", "--confirm")
	s.ask("data", 16*extent)
	s.must(carve.Until(s.ctx, waitTimeout, "the volume has grown", func(ctx context.Context) error {
		pv, err := s.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if err == nil && pv.Spec.Capacity.Storage().Value() != 16*extent {
			err = fmt.Errorf("it has %s", pv.Spec.Capacity.Storage())
		}
		return err
	}), "grow the adopted claim")
	s.must(s.CoreV1().PersistentVolumeClaims(s.namespace).Delete(s.ctx, "data", metav1.DeleteOptions{}), "delete the claim")
	s.gone("the volume "+pv.Name, func(ctx context.Context) error {
		_, err := s.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		return err
	})
	if got := plugin("orphans"); strings.Contains(got, "?") {
		s.Errorf("agents that did not answer: %s", got)
	}
}

// claimOfOther makes a claim, the PersistentVolume that the driver would make for it, and its class,
// and waits until they are bound. It returns the claim that is.
func (s *scope) claimOfOther(from otherDriver, node string) *corev1.PersistentVolumeClaim {
	s.Helper()
	class, late, growing := "theirs-"+s.namespace, storagev1.VolumeBindingWaitForFirstConsumer, true
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(8*extent, resource.BinarySI)}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := s.StorageV1().StorageClasses().Create(s.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: from.name, VolumeBindingMode: &late, AllowVolumeExpansion: &growing}, metav1.CreateOptions{})
	s.must(err, "make a class of "+from.name)
	s.Cleanup(func() {
		_ = s.StorageV1().StorageClasses().Delete(context.Background(), class, metav1.DeleteOptions{})
		_, _ = s.Kubectl(context.Background(), nil, "label", "node", node, from.topology+"-")
	})
	_, err = s.Kubectl(s.ctx, nil, "label", "node", node, from.topology+"="+node)
	s.must(err, "label the node")
	claim, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Create(s.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{
			"volume.kubernetes.io/storage-provisioner": from.name, "volume.beta.kubernetes.io/storage-provisioner": from.name}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}, metav1.CreateOptions{})
	s.must(err, "make a claim")
	name := "pvc-" + string(claim.UID)
	_, err = s.CoreV1().PersistentVolumes().Create(s.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": from.name},
			Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: s.namespace, Name: "data", UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: from.name, VolumeHandle: from.handle(claim), FSType: "ext4", VolumeAttributes: from.attributes}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: from.topology, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	s.must(err, "make the PersistentVolume of "+from.name)
	s.must(carve.Until(s.ctx, waitTimeout, "the claim is bound", func(ctx context.Context) error {
		claim, err = s.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "data", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", claim.Status.Phase)
		}
		return err
	}), "wait")
	return claim
}
