package controller

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/csiservice"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/filesystem"
)

func TestScratchIsForClaimsThatGoWithAPod(t *testing.T) {
	scratch := map[string]string{names.ParamProfile: "scratch"}
	anyClaim := map[string]string{names.ParamProfile: "scratch", names.ParamScratchFor: "any"}
	block := v1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		parameters map[string]string
		claim      func(*v1.PersistentVolumeClaim)
		refused    []string
	}{
		"a generic ephemeral volume has it": {scratch, ofPod, nil},
		"another claim does not": {scratch, nil,
			[]string{"parameters[carve.csi.local/profile]", "for a claim that outlives its Pod", "carve.csi.local/scratch-for: any"}},
		"another claim has it when it is forced": {anyClaim, nil, nil},
		"a claim that something else than a Pod controls does not": {scratch, func(c *v1.PersistentVolumeClaim) {
			controller := true
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "s", UID: "u", Controller: &controller}}
		}, []string{"for a claim that outlives its Pod"}},
		"a clone does not": {anyClaim, func(c *v1.PersistentVolumeClaim) {
			c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}, []string{"spec.dataSource", "carve.csi.local/profile: scratch"}},
		"a raw block volume has no file system to lose": {scratch, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			class := h.class("carve", func(c *storagev1.StorageClass) { c.Parameters = test.parameters })
			claim := h.claim("c", "", test.claim)
			r, err := spec.ParseClaim(claim, class)
			for _, words := range test.refused {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("got %v, want %q", err, words)
				}
			}
			if test.refused == nil {
				want := "scratch"
				if r.Mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
					want = ""
				}
				if got := r.CreateVolume(claim, "cluster").GetProfile(); err != nil || got != want {
					t.Errorf("profile %q, %v", got, err)
				}
			}
		})
	}
}

func TestSettingsReachTheNode(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{names.ParamFSType: "xfs", names.ParamMkfsPrefix + "label": "cache"}
	})
	h.run()
	h.boundVolume("c", "n1")
	// What the file system needs at least is known before the node is asked.
	if v := node.Volumes()["pvc-uid-c"]; v.GetFsType() != "xfs" || v.GetSizeBytes() < filesystem.MinimumSize(filesystem.XFS, false) {
		t.Errorf("volume %v", v)
	}
	claim := h.getClaim("c")
	r, err := spec.ParseClaim(claim, mustClass(t, h))
	if got := r.CreateVolume(claim, "cluster"); err != nil || got.GetFsSettings()["label"] != "cache" || got.GetRequiredBytes() != filesystem.MinimumSize(filesystem.XFS, false) {
		t.Errorf("request %v, error %v", got, err)
	}
}

func TestRequestsToTheCSIServiceAreHeldToTheSame(t *testing.T) {
	h := newHarness(t)
	for name, test := range map[string]struct {
		desired csiservice.Desired
		message string
	}{
		"settings":              {desired: csiservice.Desired{FSType: "btrfs", Parameters: map[string]string{names.ParamMkfsPrefix + "metadata": "single"}}},
		"a mount option":        {csiservice.Desired{MountFlags: []string{"commit=soon"}}, `mountOptions: "commit=soon" for ext4 is not allowed`},
		"scratch for no Pod":    {csiservice.Desired{Parameters: map[string]string{names.ParamProfile: "scratch"}}, "for a claim that outlives its Pod"},
		"scratch for everybody": {desired: csiservice.Desired{Parameters: map[string]string{names.ParamProfile: "scratch", names.ParamScratchFor: "any"}}},
	} {
		t.Run(name, func(t *testing.T) {
			test.desired.Name, test.desired.Bytes = "a", gib
			_, _, err := h.c.core.request(test.desired)
			if (err == nil) != (test.message == "") || err != nil && !strings.Contains(err.Error(), test.message) {
				t.Errorf("got %v, want %q", err, test.message)
			}
		})
	}
}

func TestAMountOptionThatTheNodesMediumCannotHaveIsAnEvent(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) { c.MountOptions = []string{"dax=always"} })
	h.run()
	h.claim("c", "", nil)
	h.selectNode("c", "n1")
	h.event(cluster.ReasonFailed, `mountOptions: "dax=always" for ext4 is not allowed`)
	if len(node.Volumes()) != 0 {
		t.Error("a volume was made")
	}
}
