package residue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// machine answers commands by their first word.
type machine map[string]string

func (m machine) Output(_ context.Context, argv ...string) (string, error) {
	output, ok := m[argv[0]]
	if !ok {
		return "", errors.New("no such command: " + strings.Join(argv, " "))
	}
	return output, nil
}

func clean() machine {
	return machine{
		"pvs": "  carve on /dev/vdb\n", "lvs": "", "dmsetup": "No devices found\n", "losetup": "",
		"cat": "22 1 0:21 / / rw shared:1 - overlay overlay rw\n" +
			"40 22 0:33 / /var/lib/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw\n",
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

func TestAMachineThatIsAsBeforeHasNoResidue(t *testing.T) {
	if got := Compare(take(t, clean()), take(t, clean())); len(got) > 0 {
		t.Errorf("Compare: %q, want nothing", got)
	}
}

func TestWhatIsLeftBehindAndWhatIsGoneIsNamed(t *testing.T) {
	dirty := clean()
	dirty["pvs"] = ""
	dirty["lvs"] = "  carve/x\n"
	dirty["dmsetup"] = "carve-x\n"
	dirty["losetup"] = "/dev/loop0 /dev/dm-0\n"
	dirty["cat"] += "41 40 0:34 / /var/lib/kubelet/pods/a/volumes/x rw - ext4 /dev/mapper/carve-x rw\n" +
		"42 22 0:35 / /elsewhere rw - tmpfs tmpfs rw\n"
	want := []string{
		"gone: physical volume carve on /dev/vdb",
		"left behind: logical volume carve/x",
		"left behind: device-mapper entry carve-x",
		"left behind: loop device /dev/loop0 on /dev/dm-0",
		"left behind: mount /var/lib/kubelet/pods/a/volumes/x (ext4 of /dev/mapper/carve-x)",
	}
	got := Compare(take(t, clean(), "/var/lib/kubelet"), take(t, dirty, "/var/lib/kubelet"))
	if !slices.Equal(got, want) {
		t.Errorf("Compare:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAMountStackedOnItsLikeIsLeftBehind(t *testing.T) {
	dirty := clean()
	dirty["cat"] += "43 40 0:33 / /var/lib/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw\n"
	want := []string{"left behind: mount /var/lib/kubelet/pods/a/volumes/x (tmpfs of tmpfs)"}
	if got := Compare(take(t, clean()), take(t, dirty)); !slices.Equal(got, want) {
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
}

func TestOnlyWhatIsInsideAFolderIsBelowIt(t *testing.T) {
	for target, want := range map[string]bool{"/a": true, "/a/b": true, "/ab": false, "/": false} {
		if got := isBelow(target, []string{"/a"}); got != want {
			t.Errorf("isBelow(%q, /a) = %t", target, got)
		}
	}
}
