"""What the simulator and the cost model predict, beside what is measured."""
