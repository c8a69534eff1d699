// Command image makes container images without a container engine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/e2e/image"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	options := image.Options{Progress: os.Stderr}
	root := &cobra.Command{
		Use:           "image",
		Short:         "Make container images without a container engine",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&options.Name, "name", "", "name and tag of the image (by default the one that the cluster uses)")
	flags.StringVar(&options.Output, "output", "", "file to write (default bin/carve-image.tar for Carve's image, bin/carve-scheduler-image.tar for carve-scheduler's, or else one in the cache)")
	flags.StringVar(&options.Version, "version", "", "version that Carve's programs report (default what git says of the source tree)")
	flags.StringVar(&options.Architecture, "arch", "amd64", "architecture of Carve's or carve-scheduler's image: amd64 or arm64")
	add := func(use, short string, make func(context.Context, image.Options) (string, error)) *cobra.Command {
		command := &cobra.Command{
			Use:   use,
			Short: short,
			Args:  cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				path, err := make(command.Context(), options)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(command.OutOrStdout(), path)
				return err
			},
		}
		root.AddCommand(command)
		return command
	}
	add("carve", "Carve's image: its programs and the tools they run", image.Carve)
	add("workload", "The image of the tests' workloads: busybox, memcached", image.Workload)
	add("fio", "The workloads' image with fio added", image.Fio)
	add("pause", "The image of Pods' sandboxes", image.Pause)
	add("coredns", "The image of the cluster's DNS", image.CoreDNS)
	scheduler := add("scheduler", "carve-scheduler's image for one minor version of Kubernetes", image.Scheduler)
	scheduler.Flags().StringVar(&options.Kubernetes, "kubernetes", "", "minor version of Kubernetes, such as 1.37 (default that of the test clusters)")
	return root
}
