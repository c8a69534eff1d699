package leftovers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// machine is what the commands of the script print.
type machine map[string]string

func (m machine) Output(context.Context, ...string) (string, error) {
	if text, ok := m["error"]; ok {
		return "", errors.New(text)
	}
	var output strings.Builder
	for _, command := range []string{"pvs", "lvs", "dmsetup", "dev", "losetup", "mountinfo", "ps 70"} {
		if text, ok := m[command]; ok {
			output.WriteString(marker + command + "\n" + text)
		}
	}
	return output.String(), nil
}

func clean() machine {
	return machine{
		"pvs": "  carve on /dev/vdb\n", "lvs": "", "dmsetup": "No devices found\n", "dev": "empty /dev/shm\n", "losetup": "",
		"mountinfo": "22 1 0:21 / / rw shared:1 - overlay overlay rw\n" + "23 22 0:22 / /dev/shm rw - tmpfs tmpfs rw\n" +
			"40 22 0:33 / /var/lib/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw\n",
		"ps 70": "  1  0 S  /init\n  2  0 S [kthreadd]\n 9 2 I [kworker/0:1]\n 70 1 S sh -c look\n 71 70 R ps\n",
	}
}

func take(t *testing.T, m machine, below ...string) Snapshot {
	t.Helper()
	s, err := Take(t.Context(), m, below...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAMachineThatIsAsBeforeHasNoLeftovers(t *testing.T) {
	if got := Compare(take(t, clean()), take(t, clean())); len(got) > 0 {
		t.Errorf("Compare: %q, want nothing", got)
	}
}

func TestWhatIsLeftBehindAndWhatIsGoneIsNamed(t *testing.T) {
	dirty := clean()
	dirty["pvs"] = ""
	dirty["lvs"] = "  carve/x/-wi-a-----\n"
	dirty["dmsetup"] = "carve-x\n"
	dirty["losetup"] = "/dev/loop0 /dev/dm-0\n"
	dirty["mountinfo"] += "41 40 0:34 / /var/lib/kubelet/pods/a/volumes/x rw - ext4 /dev/mapper/carve-x rw\n" +
		"42 22 0:35 / /elsewhere rw - tmpfs tmpfs rw\n"
	dirty["ps 70"] += " 90 1 S carve-lvmd --config x\n 91 1 Z [mkfs.ext4]\n"
	want := []string{
		"gone: physical volume carve on /dev/vdb",
		"left behind: logical volume carve/x",
		"left behind: device-mapper entry carve-x",
		"left behind: loop device /dev/loop0 on /dev/dm-0",
		"left behind: mount /var/lib/kubelet/pods/a/volumes/x (ext4 of /dev/mapper/carve-x)",
		"left behind: process carve-lvmd --config x",
	}
	got := Compare(take(t, clean(), "/var/lib/kubelet"), take(t, dirty, "/var/lib/kubelet"))
	if !slices.Equal(got, want) {
		t.Errorf("Compare:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNamesInDevThatLeadToNoDeviceAreLeftBehind(t *testing.T) {
	dirty := clean()
	dirty["lvs"] = "  carve/x/-wi-a-----\n"
	dirty["dmsetup"] = "carve-x\n"
	dirty["dev"] = "empty /dev/carve-empty\nempty /dev/bus/usb\nempty /dev/shm\nnode /dev/mapper/carve-x\nnode /dev/mapper/carve-y\n" +
		"link /dev/carve/x /dev/mapper/carve-x\nlink /dev/carve/y /dev/mapper/carve-y\ndangling /dev/carve/z\n"
	want := []string{
		"left behind: logical volume carve/x",
		"left behind: device-mapper entry carve-x",
		"left behind: stale name /dev/carve-empty",
		"left behind: stale name /dev/carve/y",
		"left behind: stale name /dev/carve/z",
		"left behind: stale name /dev/mapper/carve-y",
	}
	if got := Compare(take(t, clean()), take(t, dirty)); !slices.Equal(got, want) {
		t.Errorf("Compare:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAMountStackedOnItsLikeIsLeftBehind(t *testing.T) {
	dirty := clean()
	dirty["mountinfo"] += "43 40 0:33 / /var/lib/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw\n"
	want := []string{"left behind: mount /var/lib/kubelet/pods/a/volumes/x (tmpfs of tmpfs)"}
	if got := Compare(take(t, clean()), take(t, dirty)); !slices.Equal(got, want) {
		t.Errorf("Compare: %q, want %q", got, want)
	}
}

func TestThePoolsOfTheListMayHaveTheirDevices(t *testing.T) {
	used := clean()
	used["lvs"] = "  carve/a-pool/twi-aotz--\n"
	used["dmsetup"] = "carve-a--pool\ncarve-a--pool-tpool\ncarve-a--pool_tdata\n"
	want := []string{"left behind: logical volume carve/a-pool", "left behind: device-mapper entry carve-a--pool_tdata"}
	if got := Compare(take(t, clean()), take(t, used)); !slices.Equal(got, want) {
		t.Errorf("Compare: %q, want %q", got, want)
	}
}

func TestACommandThatFailsIsAnError(t *testing.T) {
	for command := range clean() {
		m := clean()
		delete(m, command)
		if _, err := Take(t.Context(), m); err == nil {
			t.Errorf("Take without %s: want an error", command)
		}
	}
	m := clean()
	m["error"] = "exit code 5"
	if _, err := Take(t.Context(), m); err == nil {
		t.Error("Take where the script fails: want an error")
	}
}

// passing is a machine in which something is still there at the first look.
type passing struct {
	first, then machine
	looks       int
}

func (p *passing) Output(ctx context.Context, argv ...string) (string, error) {
	if p.looks++; p.looks == 1 {
		return p.first.Output(ctx, argv...)
	}
	return p.then.Output(ctx, argv...)
}

func TestWhatGoesAwayIsNotLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dirty := clean()
		dirty["ps 70"] += " 90 1 S carve-lvmd\n"
		if left, err := Left(t.Context(), &passing{first: dirty, then: clean()}, take(t, clean())); err != nil || len(left) > 0 {
			t.Errorf("Left of a process that ends: %q, error %v, want nothing", left, err)
		}
		if left, err := Left(t.Context(), dirty, take(t, clean())); err != nil || len(left) != 1 {
			t.Errorf("Left of a process that stays: %q, error %v, want one", left, err)
		}
		before := take(t, clean())
		before.Processes = nil
		if left, err := Left(t.Context(), dirty, before); err != nil || len(left) > 0 {
			t.Errorf("Left where processes are not compared: %q, error %v, want nothing", left, err)
		}
	})
}

func TestOnlyWhatIsInsideAFolderIsBelowIt(t *testing.T) {
	for target, want := range map[string]bool{"/a": true, "/a/b": true, "/ab": false, "/": false} {
		if got := isBelow(target, []string{"/a"}); got != want {
			t.Errorf("isBelow(%q, /a) = %t", target, got)
		}
	}
}
