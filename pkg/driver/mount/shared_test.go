package mount

import (
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/carve-csi/carve/pkg/must"
)

func TestCheckShared(t *testing.T) {
	const (
		root   = "1 0 0:20 / / rw - overlay overlay rw\n"
		shared = "2 1 8:1 /var/lib/kubelet/pods /kubelet/pods rw shared:7 master:3 - ext4 /dev/sda1 rw\n"
		slave  = "2 1 8:1 /var/lib/kubelet/pods /kubelet/pods rw master:3 - ext4 /dev/sda1 rw\n"
		hiding = "3 2 8:2 / /kubelet/pods rw - ext4 /dev/sdb rw\n"
	)
	for name, test := range map[string]struct{ table, dir, words string }{
		"a shared mount":                         {root + shared, "/kubelet/pods", ""},
		"a directory on a shared mount":          {root + shared, "/kubelet/pods/a", ""},
		"one that begins alike":                  {root + shared, "/kubelet/pods-2", "/kubelet/pods-2 is on the mount at /, whose mounts are private"},
		"one that was not mounted":               {root, "/kubelet/pods", "on the mount at /, whose mounts are private"},
		"HostToContainer":                        {root + slave, "/kubelet/pods", "received from the host, and not sent to it"},
		"a shared mount that another one hides":  {root + shared + hiding, "/kubelet/pods", "whose mounts are private"},
		"what to do is said":                     {root, "/kubelet/pods", "mountPropagation: Bidirectional"},
		"what to do on the host is said as well": {root, "/kubelet/pods", "mount --make-rshared /"},
		"nothing is mounted at all":              {"", "/kubelet/pods", "on no mount"},
	} {
		t.Run(name, func(t *testing.T) {
			mounts := must.Get(mountinfo.GetMountsFromReader(strings.NewReader(test.table), nil))(t)
			err := checkShared(mounts, test.dir)
			if (err == nil) != (test.words == "") || err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("got %v, want %q", err, test.words)
			}
		})
	}
}
