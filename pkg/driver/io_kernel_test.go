//go:build kernel

package driver_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
)

// BenchmarkRealIO compares, with fio, a bare logical volume with the file
// systems on one. Only the ratios mean anything, as the machine is emulated,
// and its disks do not wait for anything when they are told to flush.
func BenchmarkRealIO(b *testing.B) {
	r := newReal(b, "/dev/vdb", "disk")
	r.size = 512 * mib
	targets := map[string]string{}
	place := func(name string, v *lvmdv1.Volume, file string) {
		must.Succeed(r.t, r.stage(v, access(v)))
		must.Succeed(r.t, r.publish(v, "pod", access(v), false))
		targets[name] = filepath.Join(r.target(v, "pod"), file)
		b.Cleanup(func() {
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
		})
	}
	place("bare", r.volume("bare", ""), "")
	place("ext4", r.volume("ext4", "ext4"), "file")
	place("scratch", r.scratch("scratch"), "file")
	place("xfs", r.volume("xfs", "xfs"), "file")
	place("btrfs", r.volume("btrfs", "btrfs"), "file")

	const rounds = 3
	made := 0
	for _, job := range []struct {
		name  string
		files bool
		args  []string
	}{
		{"sequential write, 1 MiB, direct", false, []string{"--rw=write", "--bs=1m", "--direct=1", "--ioengine=libaio", "--iodepth=4"}},
		{"random write, 4 KiB, direct", false, []string{"--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=8"}},
		{"write, 4 KiB, fsync after each", false, []string{"--rw=write", "--bs=4k", "--fsync=1", "--ioengine=psync"}},
		{"create files", true, []string{"--ioengine=filecreate", "--nrfiles=3000", "--filesize=4k", "--openfiles=1", "--fallocate=none", "--create_on_open=1"}},
	} {
		b.Run(job.name, func(b *testing.B) {
			for b.Loop() {
				rate := map[string][]float64{}
				for range rounds {
					for name, target := range targets {
						where := []string{"--filename=" + target, "--size=128m", "--runtime=2", "--time_based", "--overwrite=1"}
						if job.files {
							if name == "bare" {
								continue
							}
							// Another directory each time: files are created once.
							dir := filepath.Join(filepath.Dir(target), fmt.Sprint("files", made))
							made++
							drivertest.ByHand(b, "mkdir", "-p", dir)
							where = []string{"--directory=" + dir}
						}
						rate[name] = append(rate[name], fio(b, append(where, job.args...)))
						if job.files {
							drivertest.ByHand(b, "rm", "-rf", where[0][len("--directory="):])
						}
					}
				}
				for name, of := range map[string]string{"scratch": "ext4", "ext4": "bare", "xfs": "ext4", "btrfs": "ext4"} {
					if len(rate[of]) > 0 {
						b.ReportMetric(median(rate[name])/median(rate[of]), name+"/"+of)
					}
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// fio runs one job and returns how many operations it did per second.
func fio(b *testing.B, args []string) float64 {
	b.Helper()
	args = append([]string{"--name=job", "--output-format=json", "--group_reporting", "--allow_file_create=1"}, args...)
	var result struct {
		Jobs []struct{ Read, Write struct{ Iops float64 } }
	}
	out := drivertest.ByHand(b, "fio", args...)
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Jobs) != 1 {
		b.Fatalf("fio %q: %v\n%s", args, err, out)
	}
	return result.Jobs[0].Read.Iops + result.Jobs[0].Write.Iops
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
