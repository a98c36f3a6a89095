package peers;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs test classes one after the other; writes a line for each test: class, method, outcome, seconds, what failed. */
public final class Suite {
    public static void main(String[] classes) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        System.setOut(System.err);
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            private final Map<Description, Throwable> failed = new HashMap<>();
            private final Map<Description, Long> begun = new HashMap<>();

            @Override
            public void testStarted(Description test) {
                begun.put(test, System.nanoTime());
            }

            @Override
            public void testFailure(Failure failure) {
                failed.put(failure.getDescription(), failure.getException());
                if (failure.getDescription().getMethodName() == null) {
                    testFinished(failure.getDescription());
                }
            }

            @Override
            public void testAssumptionFailure(Failure failure) {
                testIgnored(failure.getDescription());
            }

            @Override
            public void testIgnored(Description test) {
                say(test, "ignored", "");
            }

            @Override
            public void testFinished(Description test) {
                Throwable why = failed.remove(test);
                if (why != null) {
                    why.printStackTrace();
                }
                say(test, why == null ? "passed" : "failed", why == null ? "" : String.valueOf(why).split("\n")[0]);
            }

            private void say(Description test, String outcome, String why) {
                long seconds = (System.nanoTime() - begun.getOrDefault(test, System.nanoTime())) / 1_000_000_000L;
                String method = test.getMethodName() == null ? "" : test.getMethodName();
                out.println(String.join("\t", test.getClassName(), method, outcome, Long.toString(seconds), why));
            }
        });
        for (String name : classes) {
            core.run(Class.forName(name, false, Suite.class.getClassLoader()));
        }
        System.exit(0); // their clients' threads would go on
    }
}
