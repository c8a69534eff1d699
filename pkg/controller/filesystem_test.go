package controller

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/csiservice"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// eventBytes is what the API server takes of an Event's message.
const eventBytes = 1024

func storageClass(parameters map[string]string, mountOptions ...string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver, Parameters: parameters, MountOptions: mountOptions}
}

func TestWhatAClassMaySayOfItsFileSystem(t *testing.T) {
	const mkfs = names.ParamMkfsPrefix
	tests := []struct {
		name    string
		class   *storagev1.StorageClass
		kind    filesystem.Type
		message []string
	}{
		{name: "nothing", class: storageClass(nil), kind: "ext4"},
		{name: "a file system and its settings", kind: "btrfs",
			class: storageClass(map[string]string{names.ParamFSType: "btrfs", mkfs + "label": "cache", mkfs + "node-size": "32Ki"}, "noatime", "compress=zstd:3")},
		{name: "mount options that only some devices have", class: storageClass(map[string]string{names.ParamFSType: "xfs"}, "dax=inode"), kind: "xfs"},
		{name: "the profile scratch", class: storageClass(map[string]string{names.ParamProfile: "scratch"}), kind: "ext4"},
		{name: "an unknown file system", class: storageClass(map[string]string{names.ParamFSType: "ntfs"}),
			message: []string{`StorageClass carve: parameters[csi.storage.k8s.io/fstype]: "ntfs" is not allowed, allowed: btrfs, ext4, xfs`}},
		{name: "a setting of another file system", class: storageClass(map[string]string{mkfs + "node-size": "4096"}),
			message: []string{`StorageClass carve: parameters: key "carve.csi.local/mkfs-node-size" for ext4 is not allowed`, "block-size, bytes-per-inode, inode-size, label, reserved-percent"}},
		{name: "a value that the setting cannot have", class: storageClass(map[string]string{mkfs + "block-size": "64Ki"}),
			message: []string{`StorageClass carve: parameters[carve.csi.local/mkfs-block-size]: "64Ki" for ext4 is not allowed, allowed: 1024, 2048, 4096`}},
		{name: "a mount option that is not on the list", class: storageClass(nil, "noatime", "errors=panic"),
			message: []string{`StorageClass carve: mountOptions: "errors=panic" for ext4 is not allowed, allowed: `, "commit=(0 to 86400)"}},
		{name: "a mount option that is not on btrfs' list", class: storageClass(map[string]string{names.ParamFSType: "btrfs"}, "subvolid=5"),
			message: []string{`mountOptions: "subvolid=5" for btrfs`}},
		{name: "a mount option that is not on xfs' list", class: storageClass(map[string]string{names.ParamFSType: "xfs"}, "logdev=/dev/sda"),
			message: []string{`mountOptions: "logdev=/dev/sda" for xfs`}},
		{name: "a mount option that scratch has no use for", class: storageClass(map[string]string{names.ParamProfile: "scratch"}, "data=journal"),
			message: []string{`mountOptions: "data=journal" for ext4 of profile scratch is not allowed`}},
		{name: "an unknown profile", class: storageClass(map[string]string{names.ParamProfile: "fast"}),
			message: []string{`parameters[carve.csi.local/profile]: "fast" is not allowed, allowed: "scratch"`}},
		{name: "scratch with another file system", class: storageClass(map[string]string{names.ParamProfile: "scratch", names.ParamFSType: "xfs"}),
			message: []string{`parameters[carve.csi.local/profile]: "scratch" with file system xfs is not allowed, allowed: "scratch" with ext4`}},
		{name: "scratch for whom nobody knows", class: storageClass(map[string]string{names.ParamProfile: "scratch", names.ParamScratchFor: "me"}),
			message: []string{`parameters[carve.csi.local/scratch-for]: "me" is not allowed, allowed: ephemeral, any`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseClass(tt.class)
			if err == nil && (tt.message != nil || got.fileSystem.Type != tt.kind || got.fsType != string(tt.kind)) {
				t.Errorf("got %+v", got)
			}
			if err != nil && tt.message == nil {
				t.Error(err)
			}
			for _, words := range tt.message {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("got %v, want %q", err, words)
				}
			}
			if err != nil && len(err.Error()) > eventBytes {
				t.Errorf("no Event has room for %d bytes: %v", len(err.Error()), err)
			}
		})
	}
}

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
			r, err := parseClaim(claim, class)
			for _, words := range test.refused {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("got %v, want %q", err, words)
				}
			}
			if test.refused == nil {
				want := "scratch"
				if r.mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
					want = ""
				}
				if got := r.create(claim, "cluster").GetProfile(); err != nil || got != want {
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
	r, err := parseClaim(claim, mustClass(t, h))
	if got := r.create(claim, "cluster"); err != nil || got.GetFsSettings()["label"] != "cache" || got.GetRequiredBytes() != filesystem.MinimumSize(filesystem.XFS, false) {
		t.Errorf("request %v, error %v", got, err)
	}
}

func TestWhatTheMediumOfADeviceClassCannotHave(t *testing.T) {
	pmem, disk := &lvmdv1.DeviceClass{Name: "mem", Medium: "pmem"}, &lvmdv1.DeviceClass{Name: "local", Medium: "disk"}
	for name, test := range map[string]struct {
		class   *storagev1.StorageClass
		on      *lvmdv1.DeviceClass
		message string
	}{
		"DAX by default on persistent memory": {class: storageClass(nil), on: pmem},
		"btrfs on persistent memory": {storageClass(map[string]string{names.ParamFSType: "btrfs"}), pmem,
			`parameters[csi.storage.k8s.io/fstype]: "btrfs" on persistent memory, as device class mem is, is not allowed, allowed: ext4, xfs`},
		"small blocks on persistent memory": {storageClass(map[string]string{names.ParamMkfsPrefix + "block-size": "1024"}), pmem,
			`parameters[carve.csi.local/mkfs-block-size]: "1024" for ext4 on persistent memory is not allowed, allowed: 4096`},
		"DAX on a disk":            {storageClass(nil, "dax=always"), disk, `mountOptions: "dax=always" for ext4 is not allowed`},
		"DAX on persistent memory": {class: storageClass(nil, "dax=always"), on: pmem},
	} {
		t.Run(name, func(t *testing.T) {
			params, err := parseClass(test.class)
			if err != nil {
				t.Fatal(err)
			}
			if err = params.fileSystem.suits(test.class, test.on); (err == nil) != (test.message == "") || err != nil && !strings.Contains(err.Error(), test.message) {
				t.Errorf("got %v, want %q", err, test.message)
			}
		})
	}
}

func TestRequestsToTheCSIServiceAreHeldToTheSame(t *testing.T) {
	h := newHarness(t)
	for name, test := range map[string]struct {
		wish    csiservice.Wish
		message string
	}{
		"settings":              {wish: csiservice.Wish{FSType: "btrfs", Parameters: map[string]string{names.ParamMkfsPrefix + "metadata": "single"}}},
		"a mount option":        {csiservice.Wish{MountFlags: []string{"commit=soon"}}, `mountOptions: "commit=soon" for ext4 is not allowed`},
		"scratch for nobody":    {csiservice.Wish{Parameters: map[string]string{names.ParamProfile: "scratch"}}, "for a claim that outlives its Pod"},
		"scratch for everybody": {wish: csiservice.Wish{Parameters: map[string]string{names.ParamProfile: "scratch", names.ParamScratchFor: "any"}}},
	} {
		t.Run(name, func(t *testing.T) {
			test.wish.Name, test.wish.Bytes = "a", gib
			_, _, err := h.c.core.request(test.wish)
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
	h.event(reasonFailed, `mountOptions: "dax=always" for ext4 is not allowed`)
	if len(node.Volumes()) != 0 {
		t.Error("a volume was made")
	}
}
