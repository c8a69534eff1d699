package image

import (
	"context"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// WorkloadName is the default name of the workloads' image.
const WorkloadName = "carve.csi.local/workload:dev"

// FioName is the default name of the image with fio.
const FioName = "carve.csi.local/fio:dev"

// workloadPackages are what the Pods of tests and examples run.
var workloadPackages = []string{
	"busybox", "coreutils", "dash", "e2fsprogs", "memcached", "util-linux", "xfsprogs",
}

// applets are the commands of busybox that no other package in the image has.
var applets = []string{
	"awk", "clear", "cmp", "diff", "find", "free", "grep", "gzip", "gunzip", "hexdump", "hostname", "httpd", "ifconfig",
	"ip", "killall", "less", "nc", "netstat", "nslookup", "pgrep", "ping", "pkill", "ps", "route", "sed", "strings",
	"tar", "telnet", "top", "uptime", "usleep", "vi", "watch", "wget", "which", "xargs", "xxd", "zcat",
}

// Workload makes the image of the tests' workloads, Debian's busybox and memcached with a
// shell and the tools to look at file systems, and returns its path.
func Workload(ctx context.Context, o Options) (string, error) {
	return o.workload(ctx, "workload", orDefault(o.Name, WorkloadName), workloadPackages)
}

// Fio makes the workloads' image with fio added, and returns its path. It is an image of
// its own because Debian's fio needs more libraries than all the rest, and a node that is
// emulated takes its time to unpack them.
func Fio(ctx context.Context, o Options) (string, error) {
	return o.workload(ctx, "fio", orDefault(o.Name, FioName), append(slices.Clone(workloadPackages), "fio"))
}

func (o Options) workload(ctx context.Context, kind, name string, packages []string) (string, error) {
	extra := systemFiles()
	for _, applet := range applets {
		extra["usr/local/bin/"+applet] = link("/usr/bin/busybox")
	}
	extra.addParents("usr/local/bin/busybox")
	layer, err := debianLayer(ctx, amd64, packages, extra, o.Progress)
	if err != nil {
		return "", err
	}
	return o.cached(ctx, kind, name, []string{layer}, func() (description, error) {
		content, err := fileLayer(layer)
		return description{layers: []v1.Layer{content}}, err
	})
}
