package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/must"
)

func TestPathsInRequests(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	kubelet := f.machine.KubeletDir
	outside := filepath.Join(f.machine.Dir, "outside")
	must.Succeed(f.t, os.Mkdir(outside, 0o750))
	must.Succeed(f.t, os.Symlink(outside, filepath.Join(kubelet, "link")))
	must.Succeed(f.t, os.WriteFile(filepath.Join(kubelet, "file"), nil, 0o600))
	tests := []struct{ name, path, words string }{
		{"missing", "", "a value is required"},
		{"relative", "pods/x", "an absolute path without . and .. is"},
		{"with dots", kubelet + "/pods/../../etc", "an absolute path without . and .. is"},
		{"with a slash at the end", kubelet + "/pods/", "an absolute path without . and .. is"},
		{"outside of the kubelet's directory", outside + "/x", "paths below " + kubelet + " are"},
		{"a neighbour with the same beginning", kubelet + "-x/y", "paths below " + kubelet + " are"},
		{"the kubelet's directory itself", kubelet, "paths below " + kubelet + " are"},
		{"through a symbolic link", kubelet + "/link/x", "is a symbolic link"},
		{"through a file", kubelet + "/file/x", "is not a directory"},
		{"too long", kubelet + "/" + strings.Repeat("x", 4096), "allowed are 4095"},
		{"with control characters", kubelet + "/a\nb", "control characters"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			calls := map[string]func() error{
				"stage": func() error {
					_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: tt.path, VolumeCapability: filesystemAccess(writer)})
					return err
				},
				"unstage": func() error {
					_, err := f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: tt.path})
					return err
				},
				"publish from": func() error {
					_, err := f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: tt.path, TargetPath: f.target(v, "pod"), VolumeCapability: filesystemAccess(writer)})
					return err
				},
				"publish to": func() error {
					_, err := f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: tt.path, VolumeCapability: filesystemAccess(writer)})
					return err
				},
				"unpublish": func() error {
					_, err := f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: tt.path})
					return err
				},
			}
			for name, call := range calls {
				t.Run(name, func(t *testing.T) { wantError(t, call(), codes.InvalidArgument, tt.words) })
			}
		})
	}
	f.wantLayers(0)
}

func TestAPathThatIsGoneIsNoErrorWhenTakingOff(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	gone := filepath.Join(f.machine.KubeletDir, "no", "such", "path")
	must.Get(f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: gone}))(f.t)
	must.Get(f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: gone}))(f.t)
}

func TestVolumeIDsInRequests(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	for name, id := range map[string]string{
		"missing": "", "with a path": "../" + v.GetId(), "too long": strings.Repeat("x", 129), "with a line break": "cv\n",
	} {
		t.Run(name, func(t *testing.T) {
			for call, err := range map[string]error{
				"stage":     second(f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: f.staging(v), VolumeCapability: filesystemAccess(writer)})),
				"unstage":   second(f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: f.staging(v)})),
				"publish":   second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: f.staging(v), TargetPath: f.target(v, "pod"), VolumeCapability: filesystemAccess(writer)})),
				"unpublish": second(f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: f.target(v, "pod")})),
				"stats":     second(f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: f.target(v, "pod")})),
				"expand":    second(f.NodeExpandVolume(f.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: f.target(v, "pod")})),
				"health":    second(f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})),
			} {
				t.Run(call, func(t *testing.T) { wantError(t, err, codes.InvalidArgument, "volume_id: ") })
			}
		})
	}
}

func TestCapabilitiesInRequests(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	tests := []struct {
		name  string
		given *csi.VolumeCapability
		words string
	}{
		{"missing", nil, "volume_capability: a value is required"},
		{"without an access type", &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}}, "block or mount"},
		{"without an access mode", filesystemAccess(csi.VolumeCapability_AccessMode_UNKNOWN), "UNKNOWN is not supported"},
		{"on several nodes", filesystemAccess(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), "MULTI_NODE_MULTI_WRITER is not supported: a volume is used on one node"},
		{"with a group to mount as", &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "1000"}},
		}, "left to the kubelet"},
		{"with an unknown file system", &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ntfs"}},
		}, `file system "ntfs" is not supported: allowed are btrfs, ext4, xfs`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, f.stage(v, tt.given), codes.InvalidArgument, tt.words)
			wantError(t, f.publish(v, "pod", tt.given, false), codes.InvalidArgument, tt.words)
		})
	}
}

func TestSecretsAndContextsAreNeverLogged(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	secrets, context := map[string]string{"key": "hunter2"}, map[string]string{"key": "hunter3"}
	must.Succeed(f.t, second(f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), VolumeCapability: filesystemAccess(writer),
		Secrets: secrets, VolumeContext: context, PublishContext: context,
	})))
	must.Succeed(f.t, second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: f.target(v, "pod"), VolumeCapability: filesystemAccess(writer),
		Secrets: secrets, VolumeContext: context, PublishContext: context,
	})))
	log := f.machine.Log.String()
	if !strings.Contains(log, "NodeStageVolume") || !strings.Contains(log, "volume="+v.GetId()) {
		t.Errorf("the calls are not logged: %s", log)
	}
	if strings.Contains(log, "hunter") {
		t.Errorf("a secret is logged: %s", log)
	}
}

func second[T any](_ T, err error) error { return err }
