package blockdev

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// tree creates files below a directory; "a -> b" is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, contents := range files {
		path := filepath.Join(root, name)
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		if target, ok := strings.CutPrefix(contents, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(contents+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestBlockDevicesAreReadFromSysfs(t *testing.T) {
	root := tree(t, map[string]string{
		"sys/block/sda/size":                             "2048",
		"sys/block/sda/ro":                               "0",
		"sys/block/sda/diskseq":                          "9",
		"sys/block/sda/queue/rotational":                 "1",
		"sys/block/sda/device/model":                     "ST4000NM0035-1V4 ",
		"sys/block/sda/device/wwid":                      "naa.5000c500a1b2c3d4",
		"sys/block/sda/sda1/partition":                   "1",
		"sys/block/sda/sda1/size":                        "1024",
		"sys/block/sda/dm/partition":                     "not to be looked for",
		"sys/block/sda/sda1/ro":                          "0",
		"sys/block/sda/sda1/holders/dm-0/x":              "",
		"sys/block/nvme0n1/size":                         "8388608",
		"sys/block/nvme0n1/ro":                           "1",
		"sys/block/nvme0n1/wwid":                         "eui.0025385",
		"sys/block/nvme0n1/queue/rotational":             "0",
		"sys/block/nvme0n1/device/model":                 "Amazon EC2 NVMe Instance Storage        ",
		"sys/block/nvme0n1/device/serial":                "AWS1  ",
		"sys/block/nvme0c0n1/size":                       "8388608",
		"sys/block/nvme0c0n1/hidden":                     "1",
		"sys/block/vda/size":                             "64",
		"sys/block/vda/serial":                           "disk one",
		"sys/block/dm-0/size":                            "8",
		"sys/block/dm-0/dm/uuid":                         "LVM-abc",
		"sys/block/dm-0/dm/name":                         "carve-v",
		"sys/block/loop0/size":                           "0",
		"sys/block/loop1/size":                           "8",
		"sys/block/pmem0/size":                           "8",
		"sys/block/pmem0/queue/dax":                      "1",
		"sys/block/cciss!c0d0/size":                      "8",
		"dev/disk/by-id/ata-ST4000NM0035-1V4_ZC1":        "-> ../../sda",
		"dev/disk/by-id/ata-ST4000NM0035-1V4_ZC1-part1":  "-> ../../sda1",
		"dev/disk/by-id/wwn-0x5000c500a1b2c3d4":          "-> ../../sda",
		"dev/disk/by-id/lvm-pv-uuid-from-somewhere-else": "-> ../../sda1",
	})
	all := must.Get(List(root))(t)
	byName := map[string]Device{}
	for _, d := range all {
		byName[d.Name] = d
	}
	if got, want := len(all), 8; got != want {
		t.Errorf("%d devices, want %d: %v", got, want, all)
	}
	sda := byName["sda"]
	if sda.Path != "/dev/sda" || sda.Size != 1<<20 || !sda.Rotational || sda.ReadOnly || sda.Sequence != 9 ||
		sda.Model != "ST4000NM0035-1V4" || sda.Virtual || sda.NVMe() || !slices.Equal(sda.Partitions, []string{"sda1"}) {
		t.Errorf("sda %+v", sda)
	}
	if want := []string{"ata-ST4000NM0035-1V4_ZC1", "wwn-0x5000c500a1b2c3d4"}; !slices.Equal(sda.IDs, want) {
		t.Errorf("sda's names %q, want %q", sda.IDs, want)
	}
	if p := byName["sda1"]; p.Parent != "sda" || p.Size != 512<<10 || !slices.Equal(p.Holders, []string{"dm-0"}) || len(p.IDs) != 2 || !p.Rotational {
		t.Errorf("sda1 %+v", p)
	}
	nvme := byName["nvme0n1"]
	if !nvme.NVMe() || !nvme.ReadOnly || nvme.Model != "Amazon EC2 NVMe Instance Storage" || nvme.Serial != "AWS1" ||
		!slices.Equal(nvme.IDs, []string{"nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1", "nvme-eui.0025385"}) {
		t.Errorf("nvme0n1 %+v", nvme)
	}
	if v := byName["vda"]; !slices.Equal(v.IDs, []string{"virtio-disk_one"}) {
		t.Errorf("vda %+v", v)
	}
	if d := byName["dm-0"]; d.Mapping != (Mapping{Name: "carve-v", LogicalVolume: true}) || !d.Virtual {
		t.Errorf("dm-0 %+v", d)
	}
	if d := byName["loop1"]; !d.Virtual {
		t.Errorf("loop1 %+v", d)
	}
	if d := byName["pmem0"]; !d.DAX || d.Virtual {
		t.Errorf("pmem0 %+v", d)
	}
	if d := byName["cciss!c0d0"]; d.Path != "/dev/cciss/c0d0" {
		t.Errorf("cciss %+v", d)
	}
}

func TestAMachineWithoutSysfsIsAnError(t *testing.T) {
	if _, err := List(t.TempDir()); err == nil {
		t.Error("no error")
	}
}
