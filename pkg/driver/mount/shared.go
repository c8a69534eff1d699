package mount

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// CheckShared fails unless the mount under dir is shared, so that mounts below
// dir propagate to the host and back.
func CheckShared(dir string) error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	return checkShared(mounts, dir)
}

func checkShared(mounts []*mountinfo.Info, dir string) error {
	var on *mountinfo.Info
	for _, m := range mounts {
		above := m.Mountpoint == dir || strings.HasPrefix(dir, strings.TrimSuffix(m.Mountpoint, "/")+"/")
		// The last mount at a path hides the others.
		if above && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m
		}
	}
	switch {
	case on == nil:
		return fmt.Errorf("%s is on no mount", dir)
	case group(on, "shared:") != "":
		return nil
	}
	has := "private"
	if group(on, "master:") != "" {
		has = "received from the host, and not sent to it"
	}
	return fmt.Errorf("%s is on the mount at %s, whose mounts are %s: a shared mount is required, or neither the kubelet nor Pods see their volumes. "+
		"In a Pod, mount the host's directory there with mountPropagation: Bidirectional; if it is so and the host's own mount is private, "+
		"run \"mount --make-rshared /\" on the host before the kubelet and the container runtime start", dir, on.Mountpoint, has)
}
