package spec

import (
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// eventBytes is the API server's limit for an Event's message.
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
			message: []string{`StorageClass carve: parameters: key "carve.csi.local/mkfs-node-size" for ext4 is not allowed`, "block-size, bytes-per-inode, inode-size, label, reserved-percent, root-mode, root-owner"}},
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
		{name: "an unknown kind of claims", class: storageClass(map[string]string{names.ParamClaims: "mine"}),
			message: []string{`parameters[carve.csi.local/claims]: "mine" is not allowed, allowed: ephemeral, any`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseClass(tt.class)
			if err == nil && (tt.message != nil || got.FileSystem.Type != tt.kind || got.FSType != string(tt.kind)) {
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
				t.Errorf("no Event has space for %d bytes: %v", len(err.Error()), err)
			}
		})
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
			params, err := ParseClass(test.class)
			if err != nil {
				t.Fatal(err)
			}
			if err = params.FileSystem.Suits(test.class, test.on); (err == nil) != (test.message == "") || err != nil && !strings.Contains(err.Error(), test.message) {
				t.Errorf("got %v, want %q", err, test.message)
			}
		})
	}
}
