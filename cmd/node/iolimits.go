package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/iolimit/cgroup"
	"github.com/carve-csi/carve/pkg/logging"
)

// Mount points in the container io-limits: volumes shared with the node plugin,
// and the node's cgroups.
const (
	ioLimitsDir = "/run/carve-io-limits"
	cgroupRoot  = "/host/cgroup"
)

// ioLimitDirs returns the directories shared by the plugin and the program that
// limits I/O. Each is a volume of its own, which the reader mounts read-only.
// An empty dir means that the program is not installed.
func ioLimitDirs(dir string) driver.IOLimitDirs {
	if dir == "" {
		return driver.IOLimitDirs{}
	}
	return driver.IOLimitDirs{Requests: filepath.Join(dir, "requests"), Reports: filepath.Join(dir, "reports")}
}

func ioLimits() *cobra.Command {
	c := &cobra.Command{
		Use:   "io-limits",
		Short: "Limit the I/O of Pods as the node plugin requests it",
		Long: "Writes the I/O limits of volumes to the io.max of the Pods' cgroups, and keeps them there.\n" +
			"Runs in a container of its own, with the node's cgroups and no other rights. Needs cgroup v2.",
		Args: cobra.NoArgs,
	}
	logs := logging.AddFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := logs.Logger(os.Stderr)
		if err != nil {
			return err
		}
		at := ioLimitDirs(ioLimitsDir)
		log.Info("starting", "version", version)
		iolimit.NewApplier(iolimit.Options{Cgroups: cgroup.Root(cgroupRoot), RequestDir: at.Requests, ReportDir: at.Reports, Log: log}).Run(c.Context())
		log.Info("stopped")
		return nil
	}
	return c
}
