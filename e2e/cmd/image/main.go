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
	flags.StringVar(&options.Output, "output", "", "file to write (default bin/carve-image.tar for Carve's image, or else one in the cache)")
	flags.StringVar(&options.Version, "version", "", "version that Carve's programs report (default what git says of the source tree)")
	flags.StringVar(&options.Architecture, "arch", "amd64", "architecture of Carve's image: amd64 or arm64")
	for _, one := range []struct {
		use, short string
		make       func(context.Context, image.Options) (string, error)
	}{
		{"carve", "Carve's image: its programs and the tools they run", image.Carve},
		{"workload", "The image of the tests' workloads: busybox, memcached", image.Workload},
		{"fio", "The workloads' image with fio added", image.Fio},
		{"pause", "The image of Pods' sandboxes", image.Pause},
		{"coredns", "The image of the cluster's DNS", image.CoreDNS},
		{"scheduler", "The image of kube-scheduler, as deploy/components/scheduler asks for it", image.Scheduler},
	} {
		root.AddCommand(&cobra.Command{
			Use:   one.use,
			Short: one.short,
			Args:  cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				path, err := one.make(command.Context(), options)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(command.OutOrStdout(), path)
				return err
			},
		})
	}
	return root
}
