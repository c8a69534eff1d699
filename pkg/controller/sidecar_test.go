package controller

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	upstream "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// csiSidecar is what external-provisioner is to its library: all that it knows
// of volumes is what the CSI Controller service says.
type csiSidecar struct{ service csi.ControllerClient }

func (d csiSidecar) SupportsBlock(context.Context) bool { return true }

func (d csiSidecar) Provision(ctx context.Context, o upstream.ProvisionOptions) (*v1.PersistentVolume, upstream.ProvisioningState, error) {
	here := []*csi.Topology{{Segments: map[string]string{names.TopologyNode: o.SelectedNodeName}}}
	answer, err := d.service.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:          spec.VolumeName(o.PVC),
		CapacityRange: &csi.CapacityRange{RequiredBytes: o.PVC.Spec.Resources.Requests.Storage().Value()},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		Parameters:                map[string]string{paramClaimName: o.PVC.Name, paramClaimNamespace: o.PVC.Namespace, paramVolumeName: spec.VolumeName(o.PVC)},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: here, Preferred: here},
	})
	switch {
	case status.Code(err) == codes.ResourceExhausted:
		return nil, upstream.ProvisioningReschedule, err
	case err != nil:
		return nil, upstream.ProvisioningFinished, err
	}
	made := answer.GetVolume()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: spec.VolumeName(o.PVC)}, Spec: v1.PersistentVolumeSpec{
		AccessModes: o.PVC.Spec.AccessModes, Capacity: o.PVC.Spec.Resources.Requests, PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
		NodeAffinity: objects.NodeAffinity(made.GetAccessibleTopology()[0].GetSegments()[names.TopologyNode]),
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: names.Driver, VolumeHandle: made.GetVolumeId(), FSType: "ext4", VolumeAttributes: made.GetVolumeContext()}},
	}}
	return pv, upstream.ProvisioningFinished, nil
}

func (d csiSidecar) Delete(ctx context.Context, pv *v1.PersistentVolume) error {
	_, err := d.service.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
	return err
}

// TestASidecarProvisionsInsteadOfUs leaves claims to the upstream provisioner's
// library over the CSI socket.
func TestASidecarProvisionsInsteadOfUs(t *testing.T) {
	h := newHarness(t, without(PartProvisioning))
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	connection := must.Get(grpc.NewClient("unix://"+h.serveCSI(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = connection.Close() })
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	p := upstream.NewProvisionController(ctx, h.client, names.Driver, csiSidecar{csi.NewControllerClient(connection)},
		upstream.LeaderElection(false), upstream.AddFinalizer(true))
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	claim := h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = names.Driver })
	waittest.Until(h.t, "the PersistentVolume is there", func() bool { return h.pv("pvc-uid-c") != nil })
	pv, made := h.pv("pvc-uid-c").DeepCopy(), node.Volumes()["pvc-uid-c"]
	if on, _ := objects.NodeOf(pv); made == nil || pv.Spec.CSI.VolumeHandle != made.GetId() || on != "n1" || !objects.BelongsTo(pv, claim) || pv.Spec.CSI.VolumeAttributes[provision.IdentityKey] != "" {
		t.Fatalf("PersistentVolume %+v, on the node %v", pv.Spec, made)
	}
	waittest.Until(h.t, "capacity follows", h.capacityIs("n1", gib-100*mib))

	// What the PV controller does when the claim is deleted.
	pv.Status.Phase = v1.VolumeReleased
	h.deleteClaim("c")
	must.Get(h.client.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "the volume is gone", func() bool { return len(node.Volumes()) == 0 })
	waittest.Until(h.t, "capacity is back", h.capacityIs("n1", gib))
	select {
	case e := <-h.events.Events:
		t.Errorf("ours has to do with it: %s", e)
	default:
	}
}
