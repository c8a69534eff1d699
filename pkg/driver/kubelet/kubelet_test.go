package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func write(t *testing.T, d Dir, path, content string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(d.join(path)), 0o700))
	must.Succeed(t, os.WriteFile(d.join(path), []byte(content), 0o600))
}

func TestPathsOfTheKubeletAreTakenForForgottenWithoutARecordOnly(t *testing.T) {
	for _, tt := range []struct {
		name, path, record string
		published          bool
		users              string
	}{
		{name: "a Pod's volume", path: "pods/uid/volumes/kubernetes.io~csi/pvc/mount", record: "pods/uid/volumes/kubernetes.io~csi/pvc/vol_data.json",
			published: true, users: "pods/uid/volume-subpaths"},
		{name: "a raw block volume", path: plugins + "/volumeDevices/publish/pvc/uid", record: plugins + "/volumeDevices/pvc/data/vol_data.json", published: true},
		{name: "a staged volume", path: plugins + "/carve.csi.local/hash/globalmount", record: plugins + "/carve.csi.local/hash/vol_data.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Dir(t.TempDir())
			m, ok := d.Forgotten(d.join(tt.path))
			if !ok || m.Path != d.join(tt.path) || m.Published != tt.published || m.Users != d.join(tt.users) {
				t.Errorf("without a record: %+v, %t", m, ok)
			}
			write(t, d, tt.record, "{}")
			if m, ok := d.Forgotten(d.join(tt.path)); ok {
				t.Errorf("with a record: %+v", m)
			}
		})
	}
	d := Dir(t.TempDir())
	for _, path := range []string{
		d.join("pods/uid/volumes/kubernetes.io~csi/pvc"), d.join("pods/uid/volumes/kubernetes.io~nfs/pvc/mount"),
		d.join(plugins, "other.csi.example/hash/globalmount"), d.join(plugins, "carve.csi.local/hash/mount"), "/elsewhere", string(d),
	} {
		if m, ok := d.Forgotten(path); ok {
			t.Errorf("%s: %+v", path, m)
		}
	}
}

func TestTheLackOfARecordMeansSomethingOnlyWhereThereAreRecords(t *testing.T) {
	d := Dir(t.TempDir())
	want := func(words string, err error) {
		t.Helper()
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	want("no such file", d.RecordsReliable())
	must.Succeed(t, os.MkdirAll(d.join("pods"), 0o700))
	want("is empty", d.RecordsReliable())
	must.Succeed(t, os.MkdirAll(d.join("pods/plugin"), 0o700))
	want("no readable vol_data.json", d.RecordsReliable())
	write(t, d, plugins+"/other.csi.example/hash/vol_data.json", "not JSON")
	want("no readable vol_data.json", d.RecordsReliable())
	write(t, d, "pods/uid/volumes/kubernetes.io~csi/pvc/vol_data.json", `{"driverName":"other.csi.example","volumeHandle":"v"}`)
	want("", d.RecordsReliable())

	staged := d.join(plugins, "carve.csi.local/hash/globalmount")
	must.Succeed(t, os.MkdirAll(staged, 0o700))
	m, ok := d.Forgotten(staged)
	if !ok {
		t.Fatal("it is not forgotten")
	}
	want("", d.AbsenceReliable(m))
	write(t, d, plugins+"/carve.csi.local/hash/record-of-a-later-kubelet", "")
	want("record-of-a-later-kubelet is not known", d.AbsenceReliable(m))
}

func TestRecordedAreVolumesOfThisDriverAndWhatCannotBeRead(t *testing.T) {
	for _, tt := range []struct {
		name, path, content string
		recorded, fails     bool
	}{
		{name: "a staged one", path: plugins + "/carve.csi.local/hash/vol_data.json", content: `{"driverName":"carve.csi.local","volumeHandle":"v"}`, recorded: true},
		{name: "a raw block one", path: plugins + "/volumeDevices/pvc/data/vol_data.json", content: `{"driverName":"carve.csi.local","volumeHandle":"v"}`, recorded: true},
		{name: "one of another driver", path: plugins + "/volumeDevices/pvc/data/vol_data.json", content: `{"driverName":"other","volumeHandle":"v"}`},
		{name: "another one", path: plugins + "/carve.csi.local/hash/vol_data.json", content: `{"driverName":"carve.csi.local","volumeHandle":"w"}`},
		{name: "what cannot be read", path: plugins + "/carve.csi.local/hash/vol_data.json", content: "{", recorded: true, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Dir(t.TempDir())
			write(t, d, tt.path, tt.content)
			if got, err := d.Recorded("v"); got != tt.recorded || (err != nil) != tt.fails {
				t.Errorf("got %t, %v", got, err)
			}
		})
	}
}

func TestThePodThatHasAVolume(t *testing.T) {
	d := Dir("/k")
	for path, want := range map[string]string{
		"pods/uid/volumes/kubernetes.io~csi/pvc/mount":          "uid",
		plugins + "/volumeDevices/publish/pvc/uid":              "uid",
		plugins + "/volumeDevices/publish/pvc":                  "",
		plugins + "/volumeDevices/publish/pvc/uid/more":         "",
		plugins + "/volumeDevices/staging/pvc/uid":              "",
		plugins + "/carve.csi.local/hash/globalmount":           "",
		"pods/uid/volumes/kubernetes.io~empty-dir/pvc/mount":    "",
		"pods/uid/volume-subpaths/pvc/container/0":              "",
		"../other/pods/uid/volumes/kubernetes.io~csi/pvc/mount": "",
	} {
		if got, ok := d.UserOf("/k/" + path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t, want %q", path, got, ok, want)
		}
	}
}
