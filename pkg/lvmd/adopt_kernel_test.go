//go:build kernel

package lvmd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TopoLVM names a logical volume by its object's UID, OpenEBS by the PersistentVolume's name.
// Neither tags it.
const (
	topolvmName = "0f2bdf1e-7c79-4c0a-a7a5-3d1f1f9a6f0e"
	openebsName = "pvc-213ca1e6-e271-4ec8-875c-c7def3a4908d"
)

const written = "written before"

func (n *node) theirs(t *testing.T, lv, fs string) {
	t.Helper()
	device := "/dev/" + n.group + "/" + lv
	byHand(t, "mkfs."+fs, device)
	at := &lvmdv1.Volume{DevicePath: device, FsType: fs}
	dir, unmount := mount(t, at)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "file"), []byte(written), 0o600))
	unmount()
}

func checkWritten(t *testing.T, device, fs string) {
	t.Helper()
	dir, unmount := mount(t, &lvmdv1.Volume{DevicePath: device, FsType: fs})
	defer unmount()
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != written {
		t.Errorf("it holds %q, %v", got, err)
	}
}

func (n *node) names(t *testing.T) []string {
	t.Helper()
	return strings.Fields(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", n.group))
}

func adoption(lv, name string) *lvmdv1.AdoptVolumeRequest {
	return &lvmdv1.AdoptVolumeRequest{
		LvName: lv, Name: name, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimNamespace: "team", ClaimName: "data", ClaimUid: "uid"},
	}
}

func TestVolumesOfOtherDriversAreAdoptedInPlaceAndGivenBack(t *testing.T) {
	n := newNode(t)
	lvmByHand(t, "lvcreate", "-n", topolvmName, "-L", fmt.Sprintf("%db", 64<<20), "-W", "y", "-y", n.group)
	lvmByHand(t, "lvcreate", "-L", fmt.Sprintf("%db", 32<<20), "-n", openebsName, n.group, "-y")
	n.theirs(t, topolvmName, "ext4")
	n.theirs(t, openebsName, "ext4")
	p := n.start()
	free := p.available()
	dir, unmount := mount(t, &lvmdv1.Volume{DevicePath: "/dev/" + n.group + "/" + topolvmName, FsType: "ext4"})
	_, err := p.client.AdoptVolume(t.Context(), adoption(topolvmName, "pvc-1"))
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a mounted volume: %v", err)
	}
	unmount()
	_ = dir

	adopted := must.Get(p.client.AdoptVolume(t.Context(), adoption(topolvmName, "pvc-1")))(t).GetVolume()
	if adopted.GetSizeBytes() != 64<<20 || adopted.GetFsType() != "ext4" || p.available() != free {
		t.Errorf("adopted %v; %d bytes are available, and were %d", adopted, p.available(), free)
	}
	if got := n.names(t); slices.Contains(got, topolvmName) || !slices.Contains(got, adopted.GetId()) || !slices.Contains(got, openebsName) {
		t.Errorf("logical volumes %q", got)
	}
	checkWritten(t, adopted.GetDevicePath(), "ext4")
	must.Get(p.client.RevertAdoption(t.Context(), &lvmdv1.RevertAdoptionRequest{Id: adopted.GetId()}))(t)
	if tags := strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_tags", n.group+"/"+topolvmName)); tags != "" || len(p.state().GetVolumes()) != 0 {
		t.Errorf("given back with the tags %q; volumes %v", tags, p.state().GetVolumes())
	}
	checkWritten(t, "/dev/"+n.group+"/"+topolvmName, "ext4")

	// As after a reboot without the other driver: no device.
	lvmByHand(t, "lvchange", "--activate", "n", n.group+"/"+topolvmName)
	adopted = must.Get(p.client.AdoptVolume(t.Context(), adoption(topolvmName, "pvc-1")))(t).GetVolume()
	must.Get(p.client.ConfirmAdoption(t.Context(), &lvmdv1.ConfirmAdoptionRequest{Id: adopted.GetId()}))(t)
	must.Get(p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: adopted.GetId(), RequiredBytes: 80 << 20}))(t)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	must.Succeed(t, os.Remove(filepath.Join(n.dir, "state", "journal.db")))
	p = n.start()
	checkWritten(t, adopted.GetDevicePath(), "ext4")
	p.delete(adopted.GetId())
	waittest.Until(t, "what was adopted is deleted as any volume, and the other is not", func() bool {
		return slices.Equal(n.leftovers(), []string{openebsName})
	})
	checkWritten(t, "/dev/"+n.group+"/"+openebsName, "ext4")
}

func TestAThinVolumeOfOpenEBSIsAdoptedInItsPool(t *testing.T) {
	n := newNode(t)
	pool := n.group + "_thinpool"
	n.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: " + pool + ", size: 96Mi, overprovisioning: 2}}\n"
	lvmByHand(t, "lvcreate", "-L", "96m", "-T", n.group+"/"+pool, "-V", fmt.Sprintf("%db", 64<<20), "-n", openebsName, "-y")
	n.theirs(t, openebsName, "ext4")
	p := n.start()
	adopted := must.Get(p.client.AdoptVolume(t.Context(), adoption(openebsName, "pvc-1")))(t).GetVolume()
	checkWritten(t, adopted.GetDevicePath(), "ext4")
	must.Get(p.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "snap", SourceVolumeId: adopted.GetId(), Owner: &lvmdv1.Owner{ClusterId: "cluster"}}))(t)
}

func TestVolumesOfOtherDriversInTheGroupAreNeverTouched(t *testing.T) {
	n := newNode(t)
	lvmByHand(t, "lvcreate", "-n", topolvmName, "-L", fmt.Sprintf("%db", 32<<20), "-W", "y", "-y", n.group)
	n.theirs(t, topolvmName, "ext4")
	p := n.start()
	all := p.available()
	lvmByHand(t, "lvcreate", "-L", fmt.Sprintf("%db", 32<<20), "-n", openebsName, n.group, "-y")
	n.theirs(t, openebsName, "ext4")
	waittest.Until(t, "their volume takes of the free space", func() bool { return p.available() == all-32<<20 })
	v := p.create(create("pvc-1", p.state().GetClasses()[0].GetMaximumVolumeSizeBytes(), ""))
	fill(t, v, 0x5a)
	if _, err := p.client.CreateVolume(t.Context(), create("pvc-2", 4<<20, "")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("in a full group: %v", err)
	}
	p.delete(v.GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == all-32<<20 })
	for _, lv := range []string{topolvmName, openebsName} {
		checkWritten(t, "/dev/"+n.group+"/"+lv, "ext4")
	}
	lvmByHand(t, "lvremove", "-f", n.group+"/"+openebsName)
	waittest.Until(t, "its space is free", func() bool { return p.available() == all })
	if _, err := os.Stat("/dev/" + n.group + "/" + openebsName); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("its node: %v", err)
	}
}
