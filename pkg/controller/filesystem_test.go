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
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/filesystem"
)

func TestAClassMayBeForClaimsOfPodsOnly(t *testing.T) {
	scratch := map[string]string{names.ParamProfile: "scratch"}
	anyClaim := map[string]string{names.ParamProfile: "scratch", names.ParamClaims: "any"}
	ephemeral := map[string]string{names.ParamClaims: "ephemeral"}
	clone := func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
	}
	block := v1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		parameters map[string]string
		claim      func(*v1.PersistentVolumeClaim)
		refused    []string
	}{
		"a class is for any claim":        {nil, nil, nil},
		"a generic ephemeral volume":      {ephemeral, ofPod, nil},
		"one of a class for any claim":    {map[string]string{names.ParamClaims: "any"}, ofPod, nil},
		"one that is cloned":              {ephemeral, func(c *v1.PersistentVolumeClaim) { ofPod(c); clone(c) }, nil},
		"one with the profile scratch":    {scratch, ofPod, nil},
		"another claim has it if allowed": {anyClaim, nil, nil},
		"another claim": {ephemeral, nil, []string{`StorageClass carve: parameters[carve.csi.local/claims]: "ephemeral" for a claim that no Pod owns is not allowed, ` +
			`allowed: generic ephemeral volumes (spec.volumes[].ephemeral of a Pod); any other claim needs another StorageClass, or one with carve.csi.local/claims: any`}},
		"another claim with the profile scratch": {scratch, nil,
			[]string{"parameters[carve.csi.local/claims]", "with carve.csi.local/profile: scratch, which loses data in a crash, for a claim that no Pod owns"}},
		"a claim that something else than a Pod controls": {ephemeral, func(c *v1.PersistentVolumeClaim) {
			controller := true
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "s", UID: "u", Controller: &controller}}
		}, []string{"for a claim that no Pod owns"}},
		"a clone":                     {ephemeral, clone, []string{"for a claim that no Pod owns"}},
		"a raw block volume":          {ephemeral, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, []string{"for a claim that no Pod owns"}},
		"a clone has no scratch":      {anyClaim, clone, []string{"spec.dataSource", "carve.csi.local/profile: scratch"}},
		"a raw block volume of a Pod": {scratch, func(c *v1.PersistentVolumeClaim) { ofPod(c); c.Spec.VolumeMode = &block }, nil},
		"a raw block volume with settings of a file system": {map[string]string{names.ParamMkfsPrefix + "label": "a"}, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, nil},
		"a raw block volume with an owner of its root": {map[string]string{names.ParamMkfsPrefix + "root-owner": "1:2"}, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
			[]string{`parameters[carve.csi.local/mkfs-root-owner]: "1:2" for a raw block volume, which has no root directory, is not allowed, allowed: volumeMode Filesystem`}},
		"a cloned raw block volume": {anyClaim, func(c *v1.PersistentVolumeClaim) { clone(c); c.Spec.VolumeMode = &block }, nil},
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
				want := test.parameters[names.ParamProfile]
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
	// The minimum for the file system is applied before the node is asked.
	if v := node.Volumes()["pvc-uid-c"]; v.GetFsType() != "xfs" || v.GetSizeBytes() < filesystem.MinimumSize(filesystem.XFS, false) {
		t.Errorf("volume %v", v)
	}
	claim := h.getClaim("c")
	r, err := spec.ParseClaim(claim, mustClass(t, h))
	if got := r.CreateVolume(claim, "cluster"); err != nil || got.GetFsSettings()["label"] != "cache" || got.GetRequiredBytes() != filesystem.MinimumSize(filesystem.XFS, false) {
		t.Errorf("request %v, error %v", got, err)
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
